"""The few calls of the kernel's that Python has no name for. By ctypes, since the other side has nothing else:
by its C half, which is the same from Python 3.9 on, since the package would cost a cold start 1.5 ms.

Each acts on the calling process and raises OSError with the call's name where the kernel refuses.
"""

import os
from _ctypes import FUNCFLAG_CDECL, FUNCFLAG_USE_ERRNO, CFuncPtr, _SimpleCData, dlopen, dlsym, get_errno


class _Int(_SimpleCData):
    _type_ = "i"


class _Long(_SimpleCData):
    _type_ = "l"


class _Bytes(_SimpleCData):
    _type_ = "z"  # char *


class _Call(CFuncPtr):
    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
    _restype_ = _Int


_prctl = _Call(dlsym(dlopen(None, 0), "prctl"))

_OPTIONS = {
    "PR_SET_PDEATHSIG": 1,
    "PR_SET_DUMPABLE": 4,
    "PR_SET_SECCOMP": 22,
    "PR_SET_CHILD_SUBREAPER": 36,
    "PR_SET_NO_NEW_PRIVS": 38,
}


def _check(result, call):
    if result != 0:
        number = get_errno()
        raise OSError(number, "%s: %s" % (call, os.strerror(number)))


def prctl(option, *values):
    """prctl(2): the option's name, and integers, or bytes that the kernel reads."""
    arguments = [_Bytes(value) if isinstance(value, bytes) else _Long(value) for value in (*values, 0, 0, 0, 0)[:4]]
    _check(_prctl(_Int(_OPTIONS[option]), *arguments), "prctl(%s)" % option)


def pointer_to(data):
    """The address of `data`, bytes, as the bytes of a pointer; good for as long as `data` is."""
    return bytes(memoryview(_Bytes(data)).cast("B"))


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
