"""The system calls that a sandbox does without, as one table, and the filter that takes them away.

It stands on top of the other walls: most of what it refuses needs a capability that is gone anyway, and a bug in the
kernel should not be reachable either way. What only it stops: keys of the kernel's keyring, io_uring, and a set-uid or
set-gid program planted in the workspace, which on the host would be the workspace owner's.

A filter sees numbers, not memory. So the calls that take flags in a struct (clone3, openat2) are answered "no such
call", and libraries fall back to those whose flags it can read. Other architectures' calls, and x32's, are not the ones
in the table: the first kill the process, the second are refused.
"""

from __future__ import annotations

import errno
import os
import struct

from hermes_worker import kernel

ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000

NAMESPACES = 0x7E020080  # CLONE_NEW* of every kind
SET_ID_BITS = 0o6000
CREATES = 0o100 | 0o20000000  # O_CREAT, and the bit of O_TMPFILE that is its own
TIOCSTI, TIOCLINUX = 0x5412, 0x541C

# name: (number on x86_64, number on aarch64); None is a call that the architecture does not have.
# Refused with EPERM, whatever the arguments:
REFUSED = {
    # other processes' memory and descriptors
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # mounts and roots
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    # the machine
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    # the kernel's keyring is not divided by namespaces
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # interfaces with a long record of escapes
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
}
# Answered with ENOSYS, so that libraries fall back to calls whose arguments can be read, or do without:
ABSENT = {
    "clone3": (435, 435),
    "openat2": (437, 437),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
}
# Refused when the mode, argument number N, has a set-id bit:
MODES = {
    "chmod": (90, None, 1),
    "fchmod": (91, 52, 1),
    "fchmodat": (268, 53, 2),
    "fchmodat2": (452, 452, 2),
    "creat": (85, None, 1),
    "mknod": (133, None, 1),
    "mknodat": (259, 33, 2),
}
# The same, where the mode only counts when the flags, argument number N, create a file:
OPENS = {"open": (2, None, 1, 2), "openat": (257, 56, 2, 3)}
# Refused when the flags, argument 0, ask for a new namespace:
CLONES = {"clone": (56, 220), "unshare": (272, 97)}
IOCTL = (16, 29)
# Typing into the terminal that a sandbox shares with its caller; by command, argument 1:
IOCTLS = (TIOCSTI, TIOCLINUX)

LOAD, JUMP_EQUAL, JUMP_GREATER_OR_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; an argument's low half comes first


def _op(code, value, if_true=0, if_false=0):
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load_argument(index):
    return _op(LOAD, ARGUMENTS + 8 * index)


def _answer(number):
    return _op(RETURN, ERRNO | number)


def _when_called(number, body):
    """`body`, which must end in a return, for one call; every other jumps over it."""
    return _op(JUMP_EQUAL, number, 0, len(body) // 8) + body


def _refuse_bits(argument, bits):
    return _load_argument(argument) + _op(JUMP_ANY_BIT, bits, 0, 1) + _answer(errno.EPERM) + _op(RETURN, ALLOW)


def _refuse_creating(flags, mode):
    check = _refuse_bits(mode, SET_ID_BITS)
    return _load_argument(flags) + _op(JUMP_ANY_BIT, CREATES, 1, 0) + _op(RETURN, ALLOW) + check


def program(machine=None):
    """The filter for this machine, packed. Raises RuntimeError on an architecture that the table does not have."""
    machine = machine or os.uname().machine
    if machine not in AUDIT_ARCH:
        raise RuntimeError("there is no system call filter for %s" % machine)
    column = list(AUDIT_ARCH).index(machine)
    code = _op(LOAD, ARCHITECTURE) + _op(JUMP_EQUAL, AUDIT_ARCH[machine], 1, 0) + _op(RETURN, KILL_PROCESS)
    code += _op(LOAD, NUMBER)
    if machine == "x86_64":
        code += _op(JUMP_GREATER_OR_EQUAL, X32_BIT, 0, 1) + _answer(errno.EPERM)
    rules: list[tuple[int | None, bytes]]
    rules = [(entry[column], _answer(errno.EPERM)) for entry in REFUSED.values()]
    rules += [(entry[column], _answer(errno.ENOSYS)) for entry in ABSENT.values()]
    rules += [(entry[column], _refuse_bits(entry[2], SET_ID_BITS)) for entry in MODES.values()]
    rules += [(entry[column], _refuse_creating(entry[2], entry[3])) for entry in OPENS.values()]
    rules += [(entry[column], _refuse_bits(0, NAMESPACES)) for entry in CLONES.values()]
    ioctls = _load_argument(1) + b"".join(_op(JUMP_EQUAL, c, 0, 1) + _answer(errno.EPERM) for c in IOCTLS)
    rules.append((IOCTL[column], ioctls + _op(RETURN, ALLOW)))
    code += b"".join(_when_called(number, body) for number, body in rules if number is not None)
    return code + _op(RETURN, ALLOW)


def apply():
    """Filter this process and all that it starts. Raises OSError when the kernel refuses, RuntimeError as `program`."""
    code = program()
    kernel.set_no_new_privileges()
    kernel.install_seccomp(code)
