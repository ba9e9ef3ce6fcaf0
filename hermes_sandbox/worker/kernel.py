"""The few calls of the kernel's that Python has no name for. By ctypes, since the other side has nothing else.

Each acts on the calling process and raises OSError with the call's name where the kernel refuses.
"""

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)

_OPTIONS = {
    "PR_SET_PDEATHSIG": 1,
    "PR_SET_DUMPABLE": 4,
    "PR_SET_NAME": 15,
    "PR_SET_SECCOMP": 22,
    "PR_SET_CHILD_SUBREAPER": 36,
    "PR_SET_NO_NEW_PRIVS": 38,
    "PR_CAP_AMBIENT": 47,
}
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_HEADER = b"\x22\x05\x08\x20" + bytes(4)  # _LINUX_CAPABILITY_VERSION_3, little-endian; 0: ourselves
_NO_CAPABILITIES = bytes(2 * 3 * 4)  # effective, permitted and inheritable, 32 bits of each at a time
_NAME_BYTES = 15  # the kernel keeps no more


def _check(result, call):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (call, os.strerror(number)))


def prctl(option, *values):
    """prctl(2): the option's name, and integers or addresses."""
    arguments = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    _check(_libc.prctl(ctypes.c_int(_OPTIONS[option]), *arguments), "prctl(%s)" % option)


def set_child_subreaper():
    """From here on, orphans of this process's descendants become its children, not pid 1's."""
    prctl("PR_SET_CHILD_SUBREAPER", 1)


def set_dumpable(dumpable):
    """Whether processes of the same user may read this one's memory, environment and descriptors."""
    prctl("PR_SET_DUMPABLE", int(dumpable))


def set_no_new_privs():
    """From here on, no program that this process or its children start gains any right by its file: no set-uid, and
    none of the capabilities that the kernel gives to uid 0 on exec."""
    prctl("PR_SET_NO_NEW_PRIVS", 1)


def set_parent_death_signal(number):
    """The signal that this process gets when the *thread* that forked it ends. A later change of uid forgets it."""
    prctl("PR_SET_PDEATHSIG", int(number))


def set_name(name):
    """What ps and top show for this thread: the first 15 bytes of `name`."""
    text = ctypes.create_string_buffer(name.encode("utf-8")[:_NAME_BYTES])
    prctl("PR_SET_NAME", ctypes.addressof(text))


def drop_capabilities():
    """Give up every capability; having none is no error. As uid 0 an exec brings them back, unless no_new_privs is
    set."""
    prctl("PR_CAP_AMBIENT", _PR_CAP_AMBIENT_CLEAR_ALL)
    header = ctypes.create_string_buffer(_CAPABILITY_HEADER, len(_CAPABILITY_HEADER))
    data = ctypes.create_string_buffer(_NO_CAPABILITIES, len(_NO_CAPABILITIES))
    _check(_libc.capset(header, data), "capset")
