"""The system calls that a sandbox does without, as one table, and the filter that takes them away.

It stands on top of the other walls: most of what it refuses needs a capability that is gone anyway, and a bug in the
kernel should not be reachable either way. What only it stops: the kernel's keyring, io_uring, sockets that no network
namespace holds, and a set-uid or set-gid program planted in the workspace, which on the host would be the workspace
owner's.

A filter sees numbers, not memory. So calls that take their flags in a struct are answered "no such call", and libraries
fall back to those whose flags it can read. Of an argument it reads the low half, which is all that the kernel takes of
each one here. Another architecture's calls, and x32's, are not the ones in the table: the first kill the process, the
second are refused. What is not in the table is allowed: it is a list of what is dangerous, not of what is known.
"""

import os
from _struct import pack as packed
from errno import EAFNOSUPPORT, ENOSYS, EPERM

from hermes_worker import kernel

# Conditions: (kind, number of the argument, value)
ANY_BIT, ONE_OF, NONE_OF = "any bit of", "one of", "none of"

SET_ID = 0o6000  # S_ISUID | S_ISGID
CREATES = 0o100 | 0o20000000  # O_CREAT, and the bit of O_TMPFILE that is its own: without them the mode is ignored
NAMESPACES = 0x7E020080  # CLONE_NEW* of every kind
TERMINAL = (
    0x5412,  # TIOCSTI: types into the terminal, which its owner's shell then reads
    0x541C,  # TIOCLINUX: the same by way of the console's clipboard
    0x5423,  # TIOCSETD: loads line disciplines, kernel modules with a long record of exploits, onto any pty
)
INIT = (1,)  # the pid of the sandbox's init
FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK

# (why, its calls): (name, number on x86_64, number on aarch64, answer, *conditions that must all hold). None: the
# architecture has no such call.
TABLE = (
    ("on the host a set-uid or set-gid file made here is the workspace owner's", (
        ("chmod", 90, None, EPERM, (ANY_BIT, 1, SET_ID)),
        ("fchmod", 91, 52, EPERM, (ANY_BIT, 1, SET_ID)),
        ("fchmodat", 268, 53, EPERM, (ANY_BIT, 2, SET_ID)),
        ("fchmodat2", 452, 452, EPERM, (ANY_BIT, 2, SET_ID)),
        ("creat", 85, None, EPERM, (ANY_BIT, 1, SET_ID)),
        ("mknod", 133, None, EPERM, (ANY_BIT, 1, SET_ID)),
        ("mknodat", 259, 33, EPERM, (ANY_BIT, 2, SET_ID)),
        ("open", 2, None, EPERM, (ANY_BIT, 1, CREATES), (ANY_BIT, 2, SET_ID)),
        ("openat", 257, 56, EPERM, (ANY_BIT, 2, CREATES), (ANY_BIT, 3, SET_ID)),
    )),
    ("does what this table refuses, where no filter can see it", (
        ("openat2", 437, 437, ENOSYS),
        ("clone3", 435, 435, ENOSYS),
        ("io_uring_setup", 425, 425, ENOSYS),
        ("io_uring_enter", 426, 426, ENOSYS),
        ("io_uring_register", 427, 427, ENOSYS),
    )),
    ("in a namespace of its own a process has every capability, and meets kernel code that only root was to meet", (
        ("clone", 56, 220, EPERM, (ANY_BIT, 0, NAMESPACES)),
        ("unshare", 272, 97, EPERM, (ANY_BIT, 0, NAMESPACES)),
        ("setns", 308, 268, EPERM),
    )),
    ("no network namespace holds these families (vsock reaches the hypervisor), or their modules load on demand", (
        ("socket", 41, 198, EAFNOSUPPORT, (NONE_OF, 0, FAMILIES)),
        ("socketpair", 53, 199, EAFNOSUPPORT, (NONE_OF, 0, FAMILIES)),
    )),
    ("a terminal may be shared with the caller, and every sandbox has ptys", (
        ("ioctl", 16, 29, EPERM, (ONE_OF, 1, TERMINAL)),
    )),
    ("the kernel's keyring is not divided by namespaces", (
        ("add_key", 248, 217, EPERM),
        ("request_key", 249, 218, EPERM),
        ("keyctl", 250, 219, EPERM),
    )),
    ("another process's memory and descriptors", (
        ("ptrace", 101, 117, EPERM),
        ("process_vm_readv", 310, 270, EPERM),
        ("process_vm_writev", 311, 271, EPERM),
        ("pidfd_getfd", 438, 438, EPERM),
        ("kcmp", 312, 272, EPERM),  # orders kernel addresses, which helps an exploit
    )),
    ("init has the worker's uid, and these take that for a right to weaken it; in its namespace it is pid 1", (
        ("prlimit64", 302, 261, EPERM, (ONE_OF, 0, INIT)),
        ("setpriority", 141, 140, EPERM, (ONE_OF, 1, INIT)),
        ("sched_setaffinity", 203, 122, EPERM, (ONE_OF, 0, INIT)),
        ("sched_setscheduler", 144, 119, EPERM, (ONE_OF, 0, INIT)),
        ("sched_setparam", 142, 118, EPERM, (ONE_OF, 0, INIT)),
        ("sched_setattr", 314, 274, EPERM, (ONE_OF, 0, INIT)),
        ("ioprio_set", 251, 30, EPERM, (ONE_OF, 1, INIT)),
    )),
    ("mounts and roots are the sandbox's walls", (
        ("mount", 165, 40, EPERM),
        ("umount2", 166, 39, EPERM),
        ("pivot_root", 155, 41, EPERM),
        ("chroot", 161, 51, EPERM),
        ("open_by_handle_at", 304, 265, EPERM),  # a file by its number on disk, whatever is mounted
        ("open_tree", 428, 428, ENOSYS),
        ("open_tree_attr", 467, 467, ENOSYS),
        ("move_mount", 429, 429, ENOSYS),
        ("fsopen", 430, 430, ENOSYS),
        ("fsconfig", 431, 431, ENOSYS),
        ("fsmount", 432, 432, ENOSYS),
        ("fspick", 433, 433, ENOSYS),
        ("mount_setattr", 442, 442, ENOSYS),
    )),
    ("kernel interfaces with a long record of exploits, which ordinary programs do without", (
        ("bpf", 321, 280, EPERM),
        ("perf_event_open", 298, 241, EPERM),
        ("userfaultfd", 323, 282, EPERM),  # holds the kernel in the middle of a copy for as long as an exploit needs
        ("modify_ldt", 154, None, ENOSYS),
    )),
    ("the machine's own state", (
        ("reboot", 169, 142, EPERM),
        ("init_module", 175, 105, EPERM),
        ("finit_module", 313, 273, EPERM),
        ("delete_module", 176, 106, EPERM),
        ("kexec_load", 246, 104, EPERM),
        ("kexec_file_load", 320, 294, EPERM),
        ("swapon", 167, 224, EPERM),
        ("swapoff", 168, 225, EPERM),
        ("acct", 163, 89, EPERM),
        ("quotactl", 179, 60, EPERM),
        ("quotactl_fd", 443, 443, EPERM),
        ("settimeofday", 164, 170, EPERM),
        ("clock_settime", 227, 112, EPERM),
        ("sethostname", 170, 161, EPERM),
        ("setdomainname", 171, 162, EPERM),
        ("syslog", 103, 116, EPERM),  # the kernel's log tells of the whole host
        ("iopl", 172, None, EPERM),
        ("ioperm", 173, None, EPERM),
    )),
)  # fmt: skip

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # in the order of the table's columns
X32_BIT = 0x40000000

_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _JUMP, _JUMP_EQUAL, _JUMP_GREATER_OR_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; an argument's low half comes first
_SECCOMP_MODE_FILTER = 2


def _op(code, value, if_true=0, if_false=0):
    """One struct sock_filter; the jumps count instructions to skip."""
    return packed("=HBBI", code, if_true, if_false, value)


def _unless(condition):
    """Instructions that run on to the next one where the condition holds, and allow the call where it does not."""
    kind, argument, value = condition
    code = _op(_LOAD, _ARGUMENTS + 8 * argument)
    if kind == ANY_BIT:
        code += _op(_JUMP_ANY_BIT, value, 1, 0)
    else:
        last = len(value) - 1
        over = 1 if kind == ONE_OF else 0  # the instruction that allows: skipped when a wanted value is found
        code += b"".join(_op(_JUMP_EQUAL, one, last - place + over) for place, one in enumerate(value[:-1]))
        code += _op(_JUMP_EQUAL, value[-1], over, 1 - over)
    return code + _op(_RETURN, _ALLOW)


def program(machine=None):
    """The filter, as packed struct sock_filter's. Raises RuntimeError on an architecture that the table does not have.

    What is allowed whatever its arguments, which is nearly everything, the kernel (5.11) finds out once, when the
    filter is loaded, and answers from a bitmap: the length of the table costs those calls nothing."""
    machine = machine or os.uname().machine
    if machine not in AUDIT_ARCH:
        raise RuntimeError("there is no system call filter for %s" % machine)
    column = 1 + list(AUDIT_ARCH).index(machine)
    code = _op(_LOAD, _ARCHITECTURE) + _op(_JUMP_EQUAL, AUDIT_ARCH[machine], 1, 0) + _op(_RETURN, _KILL_PROCESS)
    code += _op(_LOAD, _NUMBER)
    if machine == "x86_64":
        code += _op(_JUMP_GREATER_OR_EQUAL, X32_BIT, 0, 1) + _op(_RETURN, _ERRNO | EPERM)
    for _why, rows in TABLE:
        for row in rows:
            if row[column] is not None:
                body = b"".join(map(_unless, row[4:])) + _op(_RETURN, _ERRNO | row[3])
                code += _op(_JUMP_EQUAL, row[column], 0, len(body) // 8) + body
    return code + _op(_RETURN, _ALLOW)


def apply():
    """Filter this process, which must have one thread, and all that it starts, for good; sets no_new_privs.

    Raises OSError where the kernel refuses, RuntimeError as `program`."""
    code = program()
    kernel.set_no_new_privs()
    fprog = packed("@H6x", len(code) // 8) + kernel.pointer_to(code)
    kernel.prctl("PR_SET_SECCOMP", _SECCOMP_MODE_FILTER, fprog)
