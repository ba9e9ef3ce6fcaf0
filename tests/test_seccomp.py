"""The system call filter: every row of its table before a real kernel, and for both architectures by a small machine.

A try makes a call twice in a child of its own, without and then with the filter. Its arguments are such that the call
cannot do anything where it is not refused: no address, no descriptor, flags that do not exist. What the kernel says to
them without the filter shows that it was the filter that answered.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import platform
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

WORKER = Path(__file__).parent.parent / "hermes_sandbox" / "worker"
MACHINE = platform.machine()
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
NUMBER = re.compile(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", re.MULTILINE)
BAD = -1  # no descriptor
NOWHERE = 1  # an address that nothing is at; some calls take 0 for "none"
NO_SUCH = 0x7FFF_FFF8  # as a command, a flag or a kind: there is none
MANY_BITS = 1 << 32  # the kernel takes the low half of an int argument

# call -> the arguments of its tries. Each must be refused with the filter and do nothing without.
TRIES: dict[str, list[tuple[int, ...]]] = {
    "chmod": [(0, 0o4755), (0, 0o2755), (0, MANY_BITS | 0o6777)],
    "fchmod": [(BAD, 0o4755), (BAD, 0o2755)],
    "fchmodat": [(BAD, 0, 0o4755), (BAD, 0, 0o2755)],
    "fchmodat2": [(BAD, 0, 0o4755, 0), (BAD, 0, 0o2755, 0)],
    "creat": [(0, 0o4755), (0, 0o2755)],
    "mknod": [(0, 0o104755, 0), (0, 0o2755, 0)],
    "mknodat": [(BAD, 0, 0o104755, 0), (BAD, 0, 0o2755, 0)],
    "open": [(0, os.O_CREAT, 0o4755), (0, os.O_CREAT, 0o2755), (0, os.O_TMPFILE | os.O_RDWR, 0o4755)],
    "openat": [(BAD, 0, os.O_CREAT, 0o4755), (BAD, 0, os.O_CREAT, 0o2755), (BAD, 0, os.O_TMPFILE | os.O_RDWR, 0o4755)],
    "openat2": [(BAD, 0, 0, 0)],
    "clone3": [(0, 0)],
    "io_uring_setup": [(0, 0)],
    "io_uring_enter": [(BAD, 0, 0, 0, 0, 0)],
    "io_uring_register": [(BAD, NO_SUCH, 0, 0)],
    # CLONE_FS with a user or mount namespace, and a thread without its memory, are combinations that do not exist
    "clone": [(0x200 | 0x10000000, 0, 0, 0, 0), (0x200 | 0x20000, 0, 0, 0, 0), (0x10000 | 0x40000000, 0, 0, 0, 0)],
    "unshare": [(kind | 0x1, 0) for kind in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x8000000, 0x80)],
    "setns": [(BAD, 0)],
    "socket": [(family, 9999, 0) for family in (17, 38, 40, MANY_BITS | 40)],
    "socketpair": [(30, 9999, 0, 0), (40, 9999, 0, 0)],
    "ioctl": [(BAD, 0x5412, 0), (BAD, 0x541C, 0), (BAD, 0x5423, 0), (BAD, MANY_BITS | 0x5412, 0)],
    "add_key": [(0, 0, 0, 0, 0)],
    "request_key": [(0, 0, 0, 0)],
    "keyctl": [(NO_SUCH, 0, 0, 0, 0)],
    "ptrace": [(NO_SUCH, NO_SUCH, 0, 0)],
    "process_vm_readv": [(NO_SUCH, 0, 0, 0, 0, 1)],
    "process_vm_writev": [(NO_SUCH, 0, 0, 0, 0, 1)],
    "pidfd_getfd": [(BAD, BAD, 1)],
    "kcmp": [(NO_SUCH, NO_SUCH, NO_SUCH, 0, 0)],
    # of pid 1, but with a resource, kind or address that there is not
    "prlimit64": [(1, NO_SUCH, 0, 0)],
    "setpriority": [(NO_SUCH, 1, 0)],
    "sched_setaffinity": [(1, 8, NOWHERE)],
    "sched_setscheduler": [(1, -1, 0)],
    "sched_setparam": [(1, 0)],
    "sched_setattr": [(1, 0, 0)],
    "ioprio_set": [(NO_SUCH, 1, 0)],
    "mount": [(NOWHERE, NOWHERE, NOWHERE, 0, NOWHERE)],
    "umount2": [(NOWHERE, NO_SUCH)],
    "pivot_root": [(NOWHERE, NOWHERE)],
    "chroot": [(NOWHERE,)],
    "open_by_handle_at": [(BAD, NOWHERE, 0)],
    "open_tree": [(BAD, NOWHERE, NO_SUCH)],
    "open_tree_attr": [(BAD, NOWHERE, NO_SUCH, 0, 0)],
    "move_mount": [(BAD, NOWHERE, BAD, NOWHERE, NO_SUCH)],
    "fsopen": [(NOWHERE, NO_SUCH)],
    "fsconfig": [(BAD, NO_SUCH, 0, 0, 0)],
    "fsmount": [(BAD, NO_SUCH, 0)],
    "fspick": [(BAD, NOWHERE, NO_SUCH)],
    "mount_setattr": [(BAD, NOWHERE, NO_SUCH, 0, 0)],
    "bpf": [(NO_SUCH, 0, 0)],
    "perf_event_open": [(NOWHERE, 0, BAD, BAD, 0)],
    "userfaultfd": [(NO_SUCH,)],
    "modify_ldt": [(0, NOWHERE, 0)],  # reads a table that is empty
    "reboot": [(0, 0, 0, 0)],  # without its magic numbers
    "init_module": [(NOWHERE, 0, NOWHERE)],
    "finit_module": [(BAD, NOWHERE, NO_SUCH)],
    "delete_module": [(NOWHERE, 0)],
    "kexec_load": [(0, NO_SUCH, NOWHERE, NO_SUCH)],
    "kexec_file_load": [(BAD, BAD, 0, 0, NO_SUCH)],
    "swapon": [(NOWHERE, NO_SUCH)],
    "swapoff": [(NOWHERE,)],
    "acct": [(NOWHERE,)],
    "quotactl": [(NO_SUCH, NOWHERE, 0, 0)],
    "quotactl_fd": [(BAD, NO_SUCH, 0, 0)],
    "settimeofday": [(NOWHERE, NOWHERE)],
    "clock_settime": [(NO_SUCH, NOWHERE)],
    "sethostname": [(NOWHERE, -1)],
    "setdomainname": [(NOWHERE, -1)],
    "syslog": [(NO_SUCH, 0, 0)],
    "iopl": [(99,)],
    "ioperm": [(NO_SUCH, 0, 1)],
}
# What must stay possible; as above they can do nothing, and the answer may not change.
ALLOWED: dict[str, list[tuple[int, ...]]] = {
    "chmod": [(0, 0o1777)],
    "fchmod": [(BAD, 0o755)],
    "fchmodat": [(BAD, 0, 0o777)],
    "fchmodat2": [(BAD, 0, 0o777, 0)],
    "creat": [(0, 0o644)],
    "mknod": [(0, 0o100644, 0)],
    "mknodat": [(BAD, 0, 0o100644, 0)],
    "open": [(0, os.O_RDONLY, 0o6000), (0, os.O_CREAT, 0o644), (0, os.O_DIRECTORY, 0o6000)],
    "openat": [(BAD, 0, os.O_RDONLY, 0o6000), (BAD, 0, os.O_CREAT, 0o644), (BAD, 0, os.O_DIRECTORY, 0o6000)],
    "clone": [(0x10000, 0, 0, 0, 0)],  # CLONE_THREAD without its memory: EINVAL
    "unshare": [(0x1, 0)],
    "prlimit64": [(0, NO_SUCH, 0, 0)],
    "setpriority": [(NO_SUCH, 0, 0)],
    "sched_setaffinity": [(0, 8, NOWHERE)],
    "sched_setscheduler": [(0, -1, 0)],
    "sched_setparam": [(0, 0)],
    "sched_setattr": [(0, 0, 0)],
    "ioprio_set": [(NO_SUCH, 0, 0)],
    "socket": [(family, 9999, 0) for family in (1, 2, 10, 16)],
    "socketpair": [(1, 9999, 0, 0)],
    "ioctl": [(BAD, 0x5413, 0), (BAD, 0x5401, 0)],
}

CHILD = """
import ctypes, json, sys
from hermes_worker import seccomp
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
number, tries = json.loads(sys.argv[1])
def answers():
    found = []
    for arguments in tries:
        ctypes.set_errno(0)
        done = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(value) for value in arguments])
        found.append(ctypes.get_errno() if done == -1 else 0)
    return found
before = answers()
seccomp.apply()
print(json.dumps([before, answers()]))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to import `hermes_worker` from, as the worker does on the other side."""
    folder = tmp_path_factory.mktemp("worker")
    (folder / "hermes_worker").symlink_to(WORKER)
    return folder


@pytest.fixture(scope="module")
def seccomp(path: Path) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path)
        from hermes_worker import seccomp

        yield seccomp


def run(path: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(path)!r})\n{program}"
    argv = [sys.executable, "-I", "-S", "-c", code, *arguments]
    return subprocess.run(argv, capture_output=True, encoding="utf-8", timeout=30, check=False)


def answers(path: Path, number: int, tries: list[tuple[int, ...]]) -> tuple[list[int], list[int]]:
    """What the kernel answers to each of `tries`, without and with the filter: an errno, or 0."""
    done = run(path, CHILD, json.dumps([number, tries]))
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    return before, after


def rows(table: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    return {row[0]: row for _why, group in table for row in group}


def names(listing: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", listing)


def number_of(seccomp: ModuleType, name: str, machine: str) -> int | None:
    number: int | None = rows(seccomp.TABLE)[name][1 + list(seccomp.AUDIT_ARCH).index(machine)]
    return number


def test_the_tries_and_the_table_name_the_same_calls(seccomp: ModuleType) -> None:
    assert set(TRIES) == set(rows(seccomp.TABLE))
    assert all(why for why, _group in seccomp.TABLE)


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_are_the_kernels_own(seccomp: ModuleType, machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip(f"no kernel headers ({HEADERS[machine]})")
    text = HEADERS[machine].read_text(encoding="ascii")
    defined = {name: int(value) for name, value in NUMBER.findall(text)}
    column = 1 + list(seccomp.AUDIT_ARCH).index(machine)
    newest = max(defined.values())
    for name, row in rows(seccomp.TABLE).items():
        if row[column] is None:
            assert name not in defined
        elif row[column] <= newest:
            assert row[column] == defined[name], name


@pytest.mark.parametrize("column", [1, 2])
def test_no_row_is_in_the_shadow_of_another(seccomp: ModuleType, column: int) -> None:
    numbers = [row[column] for row in rows(seccomp.TABLE).values() if row[column] is not None]
    assert len(numbers) == len(set(numbers))


@pytest.mark.skipif(MACHINE not in HEADERS, reason=f"no filter for {MACHINE}")
class TestOnThisKernel:
    @names(TRIES)
    def test_a_call_of_the_table_is_refused(self, seccomp: ModuleType, path: Path, name: str) -> None:
        number = number_of(seccomp, name, MACHINE)
        if number is None:
            pytest.skip(f"{MACHINE} has no {name}")
        before, after = answers(path, number, TRIES[name])
        answer = rows(seccomp.TABLE)[name][3]
        assert after == [answer] * len(TRIES[name])
        if answer in before:
            pytest.skip(f"without the filter {name} is answered by {errno.errorcode[answer]} as well, here and to us")

    @names(ALLOWED)
    def test_its_harmless_uses_are_not(self, seccomp: ModuleType, path: Path, name: str) -> None:
        number = number_of(seccomp, name, MACHINE)
        if number is None:
            pytest.skip(f"{MACHINE} has no {name}")
        before, after = answers(path, number, ALLOWED[name])
        assert before == after
        assert 0 not in before

    def test_set_uid_files_cannot_be_made_and_ordinary_work_goes_on(self, path: Path, tmp_path: Path) -> None:
        program = """
import os, socket, subprocess, sys, tempfile, threading
from hermes_worker import seccomp
seccomp.apply()
os.chdir(sys.argv[1])
open("program", "w").close()
def refused(function, *arguments):
    try:
        function(*arguments)
    except PermissionError:
        return
    raise AssertionError(arguments)
for mode in (0o4755, 0o2755, 0o6755):
    refused(os.chmod, "program", mode)
    refused(lambda: os.fchmod(os.open("program", os.O_RDONLY), mode))
    refused(os.open, "other", os.O_CREAT | os.O_WRONLY, mode)
    refused(os.open, ".", os.O_TMPFILE | os.O_RDWR, mode)
    refused(os.mknod, "other", mode | 0o100000)
assert os.listdir() == ["program"] and os.stat("program").st_mode & 0o7000 == 0
os.chmod("program", 0o755); os.mkdir("folder", 0o777); os.chmod("folder", 0o1777); os.mkfifo("fifo")
tempfile.NamedTemporaryFile(dir="."); tempfile.TemporaryFile(dir=".").write(b"x")
socket.create_server(("127.0.0.1", 0)); socket.socketpair()
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
print(subprocess.run(["sh", "-c", "(echo child) | cat"], capture_output=True, encoding="utf-8", check=True).stdout)
"""
        done = run(path, program, str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["thread", "child"]

    def test_children_and_programs_inherit_it(self, path: Path) -> None:
        program = """
import os, subprocess, sys
from hermes_worker import seccomp
seccomp.apply()
sys.exit(subprocess.run([sys.executable, "-I", "-S", "-c", "import os; os.chmod('/nowhere', 0o4755)"]).returncode)
"""
        done = run(path, program)
        assert done.returncode == 1
        assert "PermissionError" in done.stderr

    @pytest.mark.skipif(MACHINE != "x86_64", reason="only there is a second architecture that easy to reach")
    def test_the_other_architecture_of_this_machine_is_killed(self, path: Path) -> None:
        program = """
import ctypes, mmap, sys
from hermes_worker import seccomp
page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov eax, 20 (getpid of i386); int 0x80; ret
getpid = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
if sys.argv[1] == "filter":
    seccomp.apply()
print(getpid() > 0)
"""
        if run(path, program, "none").stdout != "True\n":
            pytest.skip("this kernel has no 32-bit calls")
        assert run(path, program, "filter").returncode == -signal.SIGSYS

    @pytest.mark.skipif(MACHINE != "x86_64", reason="x32 is a part of it")
    def test_the_x32_range_is_refused(self, path: Path) -> None:
        x32_getpid = 0x40000000 | 39
        before, after = answers(path, x32_getpid, [()])
        assert before[0] in (0, errno.ENOSYS)
        assert after == [errno.EPERM]

    def test_another_machine_is_named_and_not_run_unfiltered(self, path: Path) -> None:
        program = """
import os
os.uname = lambda: os.uname_result(("Linux", "", "", "", "riscv64"))
from hermes_worker import seccomp
seccomp.apply()
"""
        assert "RuntimeError: there is no system call filter for riscv64" in run(path, program).stderr


# Both architectures: the instructions that the kernel would run, on a machine of twenty lines -------------------------

ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
OPERATIONS = {
    0x15: lambda value, against: value == against,
    0x35: lambda value, against: value >= against,
    0x45: lambda value, against: value & against != 0,
}


def verdict(program: bytes, architecture: int, number: int | None, arguments: tuple[int, ...] = ()) -> int:
    """What the classic BPF `program` returns for a call."""
    assert number is not None
    words = [value & 0xFFFF_FFFF_FFFF_FFFF for value in (*arguments, *[0] * 6)[:6]]
    data = struct.pack("<IIQ6Q", number & 0xFFFF_FFFF, architecture, 0, *words)
    place = accumulator = 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("=HBBI", program, 8 * place)
        place += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        else:
            place += if_true if OPERATIONS[code](accumulator, value) else if_false


@functools.cache
def compiled(machine: str) -> bytes:
    from hermes_worker import seccomp

    program: bytes = seccomp.program(machine)
    return program


@pytest.mark.parametrize("machine", HEADERS)
@names(TRIES)
def test_refused_by_the_instructions(seccomp: ModuleType, machine: str, name: str) -> None:
    number, answer = number_of(seccomp, name, machine), rows(seccomp.TABLE)[name][3]
    for arguments in TRIES[name] if number is not None else ():
        assert verdict(compiled(machine), seccomp.AUDIT_ARCH[machine], number, arguments) == ERRNO | answer


@pytest.mark.parametrize("machine", HEADERS)
@names(ALLOWED)
def test_allowed_by_the_instructions(seccomp: ModuleType, machine: str, name: str) -> None:
    number = number_of(seccomp, name, machine)
    for arguments in ALLOWED[name] if number is not None else ():
        assert verdict(compiled(machine), seccomp.AUDIT_ARCH[machine], number, arguments) == ALLOW


@pytest.mark.parametrize("machine", HEADERS)
def test_all_other_calls_are_allowed_and_other_architectures_killed(seccomp: ModuleType, machine: str) -> None:
    program, own = compiled(machine), seccomp.AUDIT_ARCH[machine]
    column = 1 + list(seccomp.AUDIT_ARCH).index(machine)
    listed = {row[column] for row in rows(seccomp.TABLE).values()}
    assert {verdict(program, own, number) for number in range(600) if number not in listed} == {ALLOW}
    for foreign in (0x40000003, 0x40000028, *set(seccomp.AUDIT_ARCH.values()) - {own}):  # i386, arm
        assert verdict(program, foreign, 0) == KILL_PROCESS
    if machine == "x86_64":
        assert verdict(program, own, 0x40000000 | 520) == ERRNO | errno.EPERM  # execve of x32


@pytest.mark.parametrize("machine", HEADERS)
def test_the_program_is_what_the_kernel_accepts(seccomp: ModuleType, machine: str) -> None:
    program = compiled(machine)
    count = len(program) // 8
    assert len(program) == 8 * count
    assert count < 4096  # BPF_MAXINSNS
    for place, (code, if_true, if_false, _value) in enumerate(struct.iter_unpack("=HBBI", program), 1):
        if code in OPERATIONS:
            assert place + max(if_true, if_false) < count
    assert struct.unpack("=HBBI", program[-8:]) == (0x06, 0, 0, ALLOW)


def test_it_is_built_in_no_time(seccomp: ModuleType) -> None:
    """It is on the way of every cold start."""
    samples = []
    for _ in range(20):
        began = time.perf_counter()
        seccomp.program()
        samples.append(time.perf_counter() - began)
    assert min(samples) < 0.002
