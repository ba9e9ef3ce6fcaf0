"""read_file answers at once whatever lies at the path; write_file puts the whole content there, or leaves the old."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tool_loader import Answer, Tree, as_plain_user, load

CALM = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ROOT = Path(__file__).parent.parent
AT_ONCE = 1.0  # s; a machine under load included. What it forbids takes many times as long, or for ever


@pytest.fixture
def tree(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.chdir(workspace)
    return Tree(workspace)


def read(path: str, **more: int) -> Answer:
    answer = load()["read_file"](dict({"path": path}, **more))
    assert "error" not in answer, answer
    return answer


def read_error(path: str, **more: int) -> str:
    begun = time.monotonic()
    answer = load()["read_file"](dict({"path": path}, **more))
    assert time.monotonic() - begun < AT_ONCE
    return str(answer["error"])


def write(path: str, content: str) -> Answer:
    return load()["write_file"]({"path": path, "content": content})


# read_file -----------------------------------------------------------------------------------------------------------


def test_pages(tree: Tree) -> None:
    tree.write({"f": "".join("line %d\n" % n for n in range(1, 11))})
    assert read("f")["content"] == "\n".join("%d|line %d" % (n, n) for n in range(1, 11))
    page = read("f", offset=3, limit=2)
    assert page["content"] == "3|line 3\n4|line 4"
    assert (page["total_lines"], page["truncated"], page["next_offset"]) == (10, True, 5)
    last = read("f", offset=9, limit=2)
    assert (last["content"], last["total_lines"], last["truncated"]) == ("9|line 9\n10|line 10", 10, False)
    assert "10 lines" in read_error("f", offset=11)
    assert "1" in read_error("f", offset=0)
    assert "1" in read_error("f", limit=0)


@pytest.mark.parametrize(
    ("data", "content", "total"),
    [(b"", "", 0), (b"\n", "1|", 1), (b"a", "1|a", 1), (b"a\n", "1|a", 1), (b"a\n\nb", "1|a\n2|\n3|b", 3)],
)
def test_ends_of_files(tree: Tree, data: bytes, content: str, total: int) -> None:
    tree.write({"f": data})
    answer = read("f")
    assert (answer["content"], answer["total_lines"], answer["truncated"]) == (content, total, False)


@pytest.mark.parametrize(
    ("data", "encoding", "content"),
    [
        (b"plain\r\n", "utf-8", "1|plain"),
        ("grün\n".encode(), "utf-8", "1|grün"),
        (b"\xef\xbb\xbfone\n", "utf-8-sig", "1|one"),
        ("grün\nzwei\n".encode("utf-16"), "utf-16", "1|grün\n2|zwei"),
        ("\ufeffgrün\n".encode("utf-16-be"), "utf-16", "1|grün"),
        ("grün\n".encode("utf-32"), "utf-32", "1|grün"),
        (b"gr\xfcn\n", "latin-1", "1|grün"),
        (b"gr\xfcn " * 2000, "latin-1", None),  # longer than what is kept of a line
    ],
)
def test_the_encoding_is_named(tree: Tree, data: bytes, encoding: str, content: str | None) -> None:
    tree.write({"f": data})
    answer = read("f")
    assert answer["encoding"] == encoding
    assert answer["content"] == content if content is not None else "grün grün" in answer["content"]
    assert answer["file_size"] == len(data)


@pytest.mark.parametrize(
    ("head", "mime"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "image/png"),
        (b"\xff\xd8\xff\xe0\0", "image/jpeg"),
        (b"GIF89a\0", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\0\0\0\0WAVEfmt ", None),
        (b"\x7fELF\0\0", None),
    ],
)
def test_binary_files_are_named_and_not_shown(tree: Tree, head: bytes, mime: str | None) -> None:
    tree.write({"f": head * 10})
    answer = read("f")
    assert answer["is_binary"] is True
    assert (answer["is_image"], answer.get("mime"), answer["content"]) == (mime is not None, mime, "")


def test_a_text_that_begins_like_an_image_is_a_text(tree: Tree) -> None:
    tree.write({"f": "BM is not GIF8\n"})
    assert read("f")["content"] == "1|BM is not GIF8"


def test_special_files_at_once(tree: Tree) -> None:
    os.mkfifo("fifo")
    os.mkdir("folder")
    os.symlink("fifo", "link")
    os.symlink("round", "round")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for name, word in (
            ("fifo", "FIFO"), ("link", "FIFO"), ("folder", "directory"), (".", "directory"), ("socket", "socket"),
            ("/dev/null", "device"), ("/dev/zero", "device"), ("/dev/tty", "device"), ("round", "round"),
        ):  # fmt: skip
            error = read_error(name)
            assert word in error
            assert name in error


def test_near_names(tree: Tree) -> None:
    tree.write({"src/settings.py": "x", "src/Makefile": "x"})
    assert "src/settings.py" in read_error("src/setings.py")
    assert "src/Makefile" in read_error("src/makefile")
    assert "not there" in read_error("nothing/like/it")
    assert "f" in read_error("src/settings.py/f")


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", "x" * 5000, "/", "//", "a/" * 3000])
def test_paths_that_are_none(tree: Tree, path: str) -> None:
    assert read_error(path)
    assert "error" in write(path, "x")
    assert os.listdir() == []


def test_a_file_that_may_not_be_read(tree: Tree) -> None:
    tree.write({"f": "x"})
    os.chmod("f", 0)
    with as_plain_user():
        assert "ermission" in read_error("f")


@pytest.mark.parametrize("head", [b"", b"one\ntwo\nthree"], ids=["holes", "text and then holes"])
def test_two_gigabytes_at_once(tree: Tree, head: bytes) -> None:
    with open("huge", "wb") as file:
        file.write(head + (b"x" * 9000 + b"\n" + b"y" * 9000 if head else b""))
        file.truncate(2 << 30)
    begun = time.monotonic()
    answer = read("huge")
    assert time.monotonic() - begun < AT_ONCE
    assert answer["file_size"] == 2 << 30
    if head:
        assert answer["content"].startswith("1|one\n2|two\n3|threexxx")
        assert len(answer["content"]) < 100_000
        assert read("huge", limit=2)["content"] == "1|one\n2|two"
        assert read("huge", limit=2)["truncated"] is True
    else:
        assert answer["is_binary"] is True
    os.unlink("huge")


def test_long_lines_and_full_pages_are_cut_and_say_so(tree: Tree) -> None:
    tree.write({"long": "ä" * 500_000 + "\nnext\n", "wide": ("z" * 1900 + "\n") * 200})
    first, second = read("long")["content"].split("\n")
    assert first.startswith("1|ää")
    assert len(first) < 3000
    assert "cut" in first[1900:]
    assert second == "2|next"
    shown, offset = [], 1
    while True:
        page = read("wide", offset=offset, limit=2000)
        assert len(page["content"]) <= 100_000
        shown += [int(line.split("|")[0]) for line in page["content"].split("\n")]
        if not page["truncated"]:
            break
        offset = page["next_offset"]
    assert shown == list(range(1, 201))


@given(st.binary(max_size=60), st.integers(1, 6), st.integers(1, 6))
@CALM
def test_any_bytes_and_any_page(tree: Tree, data: bytes, offset: int, limit: int) -> None:
    data = data.replace(b"\0", b"\n").replace(b"\xff\xfe", b"..").replace(b"\xfe\xff", b"..")
    tree.write({"f": data})
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    lines = lines[:-1] if not lines[-1] else lines
    answer = load()["read_file"]({"path": "f", "offset": offset, "limit": limit})
    if "error" in answer:
        assert offset > max(1, len(lines))
        return
    wanted = lines[offset - 1 : offset - 1 + limit]
    numbers = [int(each.split("|")[0]) for each in answer["content"].split("\n")] if wanted else []
    assert numbers == list(range(offset, offset + len(wanted)))
    assert answer["total_lines"] == len(lines)
    assert answer["truncated"] == (offset - 1 + len(wanted) < len(lines))


# write_file ----------------------------------------------------------------------------------------------------------


def test_write_makes_parents_and_says_how_much(tree: Tree) -> None:
    assert write("a/b/c.txt", "grün\n")["bytes_written"] == 6
    assert tree.read("a/b/c.txt") == "grün\n".encode()
    assert os.listdir("a/b") == ["c.txt"]
    assert tree.mode("a/b/c.txt") & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_write_keeps_mode_and_owner_but_no_set_uid(tree: Tree) -> None:
    tree.write({"f": "old", "s": "old"})
    os.chmod("f", 0o604)
    os.chmod("s", 0o6755)
    if os.geteuid() == 0:
        os.chown("f", 12345, 23456)
    write("f", "new")
    write("s", "new")
    facts = os.stat("f")
    assert (tree.read("f"), tree.mode("f"), tree.mode("s")) == (b"new", 0o604, 0o755)
    assert (facts.st_uid, facts.st_gid) == ((12345, 23456) if os.geteuid() == 0 else (os.getuid(), os.getgid()))


def test_write_follows_a_link_also_to_nowhere_yet(tree: Tree) -> None:
    tree.write({"d/real": "old"})
    os.symlink("d/real", "l")
    os.symlink("d/new", "m")
    os.symlink("round", "round")
    write("l", "new")
    write("m", "made")
    assert (tree.read("d/real"), tree.read("d/new")) == (b"new", b"made")
    assert os.path.islink("l")
    assert os.path.islink("m")
    assert "error" in write("round", "x")


def test_write_refuses_what_is_no_file(tree: Tree) -> None:
    os.mkfifo("fifo")
    os.mkdir("folder")
    tree.write({"file": "x"})
    for path, word in (("fifo", "FIFO"), ("folder", "directory"), ("/dev/null", "device"), ("file/x", "file/x")):
        before = tree.state()
        assert word in write(path, "x")["error"]
        assert tree.state() == before
    assert "error" in write("g", "half \ud800 a character")
    assert not os.path.exists("g")


def test_write_into_a_folder_that_is_read_only_leaves_the_old(tree: Tree) -> None:
    tree.write({"ro/f": "old"})
    os.chmod("ro", 0o555)
    before = tree.state()
    with as_plain_user():
        for path in ("ro/f", "ro/new", "ro/sub/new"):
            assert "ermission" in write(path, "new")["error"]
    assert tree.state() == before
    os.chmod("ro", 0o755)


def test_write_on_a_full_disk_leaves_the_old(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write({"f": "old"})
    before = tree.state()

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    for path in ("f", "new", "sub/new"):
        assert "space" in write(path, "new")["error"]
    monkeypatch.undo()
    os.chdir(tree.folder)
    left = {name: fact for name, fact in tree.state().items() if name != "sub"}
    assert left == before


WRITER = """
import os, sys
from tests.tool_loader import load
handlers, calls, folder, job = load(), [0], sys.argv[1], sys.argv[3]
os.chdir(folder)

def stopping(real):
    def call(*args, **more):
        calls[0] += 1
        if calls[0] == int(sys.argv[2]):
            print("here", flush=True)
            sys.stdin.read()
        return real(*args, **more)
    return call

for name in "open fsync fchmod fchown ftruncate rename replace link unlink makedirs close".split():
    setattr(os, name, stopping(getattr(os, name)))
if job == "write_file":
    handlers[job]({"path": "f", "content": "new" * 100_000})
else:
    handlers[job]({"path": "f", "old_string": "old", "new_string": "new", "replace_all": True})
print("done", flush=True)
"""


@pytest.mark.parametrize("tool", ["write_file", "patch"])
def test_killed_before_any_step_the_file_is_the_old_or_the_new(tree: Tree, tool: str) -> None:
    """A writer is stopped before its first call of the system, then before its second, and so on; and killed there."""
    old, new = b"old" * 100_000, b"new" * 100_000
    seen = []
    for step in range(1, 40):
        tree.write({"f": old})
        os.chmod("f", 0o640)
        argv = [sys.executable, "-c", WRITER, str(tree.folder), str(step), tool]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as writer:
            assert writer.stdout is not None
            word = writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
        assert word in (b"here\n", b"done\n")
        content = tree.read("f")
        assert content in (old, new)
        assert tree.mode("f") == 0o640
        seen.append(content)
        for name in os.listdir():
            assert name == "f" or name.startswith(".hermes-sandbox-"), name
            if name != "f":
                os.unlink(name)
        if word == b"done\n":
            break
    else:
        pytest.fail("it never came to its end")
    assert len(seen) > 4
    assert (seen[0], seen[-1]) == (old, new)


@given(st.text(max_size=50))
@CALM
def test_what_is_written_is_read(tree: Tree, text: str) -> None:
    text = text.replace("\r", "").replace("\0", "").removeprefix("\ufeff")
    assert write("f", text)["success"]
    lines = text.removesuffix("\n").split("\n") if text else []
    assert read("f")["content"] == "\n".join("%d|%s" % (n, line) for n, line in enumerate(lines, 1))
