"""The few calls of the kernel's that Python has no name for. By ctypes, since the other side has nothing else."""

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38


def prctl(option, *values):
    """prctl(2) with integer arguments. Raises OSError."""
    arguments = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    if _libc.prctl(ctypes.c_int(option), *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "prctl(%d): %s" % (option, os.strerror(number)))


def set_child_subreaper():
    """From here on, orphans of this process's descendants become its children, not pid 1's."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def set_dumpable(dumpable):
    """Whether processes of the same user may read this one's memory, environment and descriptors."""
    prctl(PR_SET_DUMPABLE, int(dumpable))


def set_parent_death_signal(number):
    """The signal that this process gets when the thread that forked it ends."""
    prctl(PR_SET_PDEATHSIG, int(number))


def set_no_new_privileges():
    """From here on, no set-uid program gives this process or its children any right."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def install_seccomp(program):
    """Filter the system calls of this process and its children by `program`, packed struct sock_filter's."""
    code = ctypes.create_string_buffer(program)

    class Fprog(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    fprog = Fprog(len(program) // 8, ctypes.addressof(code))
    prctl(PR_SET_SECCOMP, 2, ctypes.addressof(fprog))
