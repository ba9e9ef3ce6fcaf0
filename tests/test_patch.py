"""patch, what it takes: each way to write a diff goes in, and what nobody named keeps its bytes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tool_loader import Tree, applied, load, refused, replaced

CALM = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def tree(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.chdir(workspace)
    return Tree(workspace)


# Unified diffs -------------------------------------------------------------------------------------------------------

A = "--- a/a.txt\n+++ b/a.txt\n"
FOUR = "one\ntwo\nthree\nfour\n"
THREE = " two\n-three\n+THREE\n four\n"
DONE = b"one\ntwo\nTHREE\nfour\n"


@pytest.mark.parametrize(
    "patch",
    [
        A + "@@ -2,3 +2,3 @@\n" + THREE,
        pytest.param(A + "@@ -900,3 +77,3 @@\n" + THREE, id="wrong numbers"),
        pytest.param(A + "@@ -2,9 +2,1 @@\n" + THREE, id="wrong counts"),
        pytest.param(A + "@@ -2,1 +2,1 @@\n" + THREE, id="counts too small"),
        pytest.param("--- a.txt\n+++ a.txt\n@@ -2,3 +2,3 @@\n" + THREE, id="no prefixes"),
        pytest.param("--- a.txt\n+++ b/a.txt\n@@ -2,3 +2,3 @@\n" + THREE, id="one prefix"),
        pytest.param("--- a/a.txt\n+++ a.txt\n@@ -2,3 +2,3 @@\n" + THREE, id="the other prefix"),
        pytest.param("--- i/a.txt\n+++ w/a.txt\n@@ -2,3 +2,3 @@\n" + THREE, id="git's mnemonic prefixes"),
        pytest.param("--- ./a.txt\n+++ ./a.txt\n@@ -2,3 +2,3 @@\n" + THREE, id="with ./"),
        pytest.param("--- a.txt.orig\n+++ a.txt\n@@ -2,3 +2,3 @@\n" + THREE, id="against a copy that is not there"),
        pytest.param(
            "--- a.txt\t2026-01-02 03:04:05.000000000 +0100\n+++ a.txt\t2026-01-02 03:04:06 +0100\n@@ -2,3 +2,3 @@\n"
            + THREE,
            id="time stamps",
        ),
        pytest.param(A + "@@\n" + THREE, id="bare @@"),
        pytest.param(A + "@@ ... @@\n" + THREE, id="dots for numbers"),
        pytest.param(A + "@@ -2,3 +2,3\n" + THREE, id="no second @@"),
        pytest.param(A + "@@ -2,3 +2,3 @@\ntwo\n-three\n+THREE\nfour\n", id="context lost its blank"),
        pytest.param(A + "@@ -1 +1 @@\ntwo\n-three\n+THREE\nfour\n", id="that, and counts too small"),
        pytest.param((A + "@@ -2,3 +2,3 @@\n" + THREE).replace("\n", "\r\n"), id="a CRLF patch"),
        pytest.param(A + "@@ -2,3 +2,3 @@\n" + THREE.rstrip("\n"), id="no newline at the end"),
        pytest.param(A + "@@ -2,3 +2,3 @@\n" + THREE + "\n\n\n", id="blank lines at the end"),
        pytest.param("Sure:\n\n```diff\n--- a/a.txt\n+++ b/a.txt\n@@ -2,3 +2,3 @@\n" + THREE + "```\n", id="a fence"),
        pytest.param(
            "```diff\n--- a/a.txt\n+++ b/a.txt\n@@ -2,3 +2,3 @@\n" + THREE + "```\n\nThis makes it loud.\n",
            id="a fence and prose after it",
        ),
        pytest.param("Here.\n" + A + "@@ -2,3 +2,3 @@\n" + THREE + "\nDone.\n", id="prose around"),
        pytest.param(
            "From 0123 Mon Sep 17 00:00:00 2001\nSubject: x\n\n---\n a.txt | 2 +-\n 1 file changed\n\n"
            "diff --git a/a.txt b/a.txt\nindex 1..2 100644\n--- a/a.txt\n+++ b/a.txt\n@@ -2,3 +2,3 @@\n" + THREE
            + "-- \n2.39.2\n\n",
            id="a mail of git's",
        ),
        pytest.param("*** Begin Patch\n*** Update File: a.txt\n@@\n" + THREE + "*** End Patch\n", id="V4A"),
        pytest.param("*** Update File: a.txt\n" + THREE, id="V4A, bare"),
        pytest.param("*** Begin Patch\n*** Update File: a.txt\n@@ one\n" + THREE, id="V4A, an anchor"),
        pytest.param(
            "*** Begin Patch\n*** Update File: a.txt\n@@ -9,3 +9,3 @@\n" + THREE, id="V4A with numbers"
        ),
        pytest.param(
            "*** Begin Patch\n*** Update File: a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -9,3 +9,3 @@\n" + THREE
            + "*** End Patch",
            id="V4A with a diff in it",
        ),
        pytest.param(
            "*** Begin Patch\n--- a/a.txt\n+++ b/a.txt\n@@ -9,3 +9,3 @@\n" + THREE + "*** End Patch",
            id="a diff with V4A around it",
        ),
    ],
)  # fmt: skip
def test_each_way_to_write_the_same_change(tree: Tree, patch: str) -> None:
    tree.write({"a.txt": FOUR, "b.txt": "other\n"})
    answer = applied(patch)
    assert tree.read("a.txt") == DONE
    assert [os.path.normpath(path) for path in answer["files_modified"]] == ["a.txt"]
    assert sorted(os.listdir()) == ["a.txt", "b.txt"]


def test_removed_lines_that_look_like_headers(tree: Tree) -> None:
    tree.write({"q.sql": "select 1\n-- old\n++ x\nselect 2\n-- last\n"})
    applied("--- a/q.sql\n+++ b/q.sql\n@@ -1,5 +1,3 @@\n select 1\n--- old\n-++ x\n select 2\n--- last\n+-- new\n")
    assert tree.read("q.sql") == b"select 1\nselect 2\n-- new\n"


def test_a_removed_and_an_added_line_that_look_like_headers_end_a_hunk(tree: Tree) -> None:
    tree.write({"q.lua": "a\n-- x\nb\nc\nd\ne\nf\n"})
    applied("--- a/q.lua\n+++ b/q.lua\n@@ -1,2 +1,2 @@\n a\n--- x\n+++ y\n@@ -6,2 +6,2 @@\n e\n-f\n+F\n")
    assert tree.read("q.lua") == b"a\n++ y\nb\nc\nd\ne\nF\n"


def test_nothing_of_a_miscounted_hunk_is_dropped_in_silence(tree: Tree) -> None:
    tree.write({"a.txt": FOUR})
    answer = load()["patch"]({"mode": "patch", "patch": A + "@@ -1,1 +1,1 @@\n-one\n+ONE\ntwo\n-three\n+THREE\n"})
    assert "error" in answer or tree.read("a.txt") == b"ONE\ntwo\nTHREE\nfour\n"


def test_several_files_one_made_one_deleted_one_moved(tree: Tree) -> None:
    tree.write({"a.txt": FOUR, "old/gone.txt": "x\n", "with blank.txt": "p\nq\n", "mv.txt": "m\nn\n"})
    answer = applied(
        "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -2,3 +2,3 @@\n" + THREE
        + "diff --git a/new/n.txt b/new/n.txt\nnew file mode 100755\n"
        "--- /dev/null\n+++ b/new/n.txt\n@@ -0,0 +1 @@\n+n\n"
        "diff --git a/old/gone.txt b/old/gone.txt\ndeleted file mode 100644\n--- a/old/gone.txt\n+++ /dev/null\n"
        "@@ -1 +0,0 @@\n-x\n"
        "diff --git a/with blank.txt b/with blank.txt\n--- a/with blank.txt\t\n+++ b/with blank.txt\t\n"
        "@@ -1,2 +1,2 @@\n p\n-q\n+Q\n"
        "diff --git a/mv.txt b/sub/mv2.txt\nsimilarity index 50%\nrename from mv.txt\nrename to sub/mv2.txt\n"
        "--- a/mv.txt\n+++ b/sub/mv2.txt\n@@ -1,2 +1,2 @@\n m\n-n\n+N\n"
    )  # fmt: skip
    found = {path: tree.read(path) for path in ("a.txt", "new/n.txt", "with blank.txt", "sub/mv2.txt")}
    assert found == {"a.txt": DONE, "new/n.txt": b"n\n", "with blank.txt": b"p\nQ\n", "sub/mv2.txt": b"m\nN\n"}
    assert not Path("old/gone.txt").exists()
    assert not Path("mv.txt").exists()
    assert tree.mode("new/n.txt") & 0o111
    assert answer["files_created"] == ["new/n.txt", "sub/mv2.txt"]
    assert answer["files_deleted"] == ["old/gone.txt", "mv.txt"]


def test_a_pure_move_keeps_bytes_mode_and_owner(tree: Tree) -> None:
    tree.write({"a": b"\xff\r\nx"})
    os.chmod("a", 0o751)
    if os.geteuid() == 0:
        os.chown("a", 12345, 23456)
    before = tree.state()["a"]
    applied("diff --git a/a b/d/b c\nsimilarity index 100%\nrename from a\nrename to d/b c\n")
    assert {name: fact for name, fact in tree.state().items() if name != "d"} == {"d/b c": before}


def test_mode_lines(tree: Tree) -> None:
    tree.write({"run": "x\n"})
    os.chmod("run", 0o640)
    applied("diff --git a/run b/run\nold mode 100644\nnew mode 100755\n")
    assert tree.mode("run") == 0o750
    refused(tree, "diff --git a/run b/run\nold mode 100644\nnew mode 100755\n", "nothing")
    applied("diff --git a/run b/run\nold mode 100755\nnew mode 100644\n")
    assert tree.mode("run") == 0o640


def test_symbolic_links_and_binary_patches_are_refused(tree: Tree) -> None:
    tree.write({"a": "x"})
    refused(tree, "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+a\n", "link")
    refused(tree, "diff --git a/a b/a\nindex 1..2 100644\nGIT binary patch\nliteral 3\nKcmZQzWMT\n", "binary")
    refused(tree, "diff --git a/a b/a\nBinary files a/a and b/a differ\n", "binary")


def test_paths_that_git_quotes(tree: Tree) -> None:
    name = 'ä "q"\t\\.txt'
    tree.write({name: "x\n"})
    quoted = '"%s/\\303\\244 \\"q\\"\\t\\\\.txt"'
    head = "diff --git %s %s\n" % (quoted % "a", quoted % "b")
    applied(head + "--- %s\n+++ %s\n@@ -1 +1 @@\n-x\n+y\n" % (quoted % "a", quoted % "b"))
    assert tree.read(name) == b"y\n"
    applied(head + "old mode 100644\nnew mode 100755\n")
    assert tree.mode(name) & 0o111


def test_a_creation_that_forgot_dev_null(tree: Tree) -> None:
    applied("--- a/n.txt\n+++ b/n.txt\n@@ -0,0 +1,2 @@\n+x\n+y\n")
    assert tree.read("n.txt") == b"x\ny\n"


def test_empty_files_made_and_deleted(tree: Tree) -> None:
    tree.write({"old": ""})
    applied(
        "diff --git a/new b/new\nnew file mode 100644\nindex 0..0\n"
        "diff --git a/old b/old\ndeleted file mode 100644\nindex 0..0\n"
    )
    assert os.listdir() == ["new"]
    assert tree.read("new") == b""


def test_the_same_file_twice_in_a_patch(tree: Tree) -> None:
    tree.write({"a.txt": FOUR})
    one = A + "@@ -1,2 +1,2 @@\n-one\n+ONE\n two\n"
    two = A + "@@ -1,2 +1,2 @@\n ONE\n-two\n+TWO\n"
    assert applied(one + two)["files_modified"] == ["a.txt"]
    assert tree.read("a.txt") == b"ONE\nTWO\nthree\nfour\n"


def test_made_then_moved_in_the_same_patch(tree: Tree) -> None:
    applied(
        "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n"
        "diff --git a/x b/y\nrename from x\nrename to y\nsimilarity index 1%\n"
    )
    assert os.listdir() == ["y"]


def test_hunks_far_from_their_numbers_keep_their_order(tree: Tree) -> None:
    """All numbers are wrong by the same amount: the second hunk goes where the first one's error says."""
    block = "{\n  x\n}\n"
    tree.write({"a": "".join("# %d\n%s" % (n, block) for n in range(30))})
    # "# 10" is line 41; the patch believes 31, and so believes the block of "# 12" to begin 10 lines too early as well.
    applied("--- a/a\n+++ b/a\n@@ -31,2 +31,2 @@\n # 10\n-{\n+[\n@@ -40,3 +40,3 @@\n {\n-  x\n+  y\n }\n")
    assert tree.read("a").split(b"# 12\n")[1].startswith(b"{\n  y\n}\n")


def test_git_itself_as_the_judge(tree: Tree) -> None:
    """Random edits, as `git diff` writes them, come out as git has them: with no context as well as with much."""
    if shutil.which("git") is None:
        pytest.skip("no git here")
    dice = random.Random(5)
    words = ["", "a", "b", "  a", "}", "-- x", "++ y", "@@", "\\ z", "+", "-"]
    for turn in range(40):
        before = [dice.choice(words) for _ in range(dice.randrange(0, 25))]
        after = list(before)
        for _ in range(dice.randrange(1, 5)):
            at = dice.randrange(len(after) + 1)
            after[at : at + dice.randrange(3)] = [dice.choice(words) for _ in range(dice.randrange(3))]
        ends = [dice.choice(["", "\n"]) for _side in range(2)]
        texts = ["\n".join(lines) + (end if lines else "") for lines, end in zip((before, after), ends, strict=True)]
        if texts[0] == texts[1]:
            continue
        tree.write({"a/f": texts[0], "b/f": texts[1], "f": texts[0]})
        argv = ["git", "diff", "--no-index", "--no-color", "--no-prefix", "-U%d" % dice.randrange(1, 4), "a/f", "b/f"]
        diff = subprocess.run(argv, capture_output=True, encoding="utf-8", check=False).stdout
        applied(diff)
        assert tree.read("f") == texts[1].encode(), (turn, diff)


# V4A -----------------------------------------------------------------------------------------------------------------


def test_v4a_all_kinds(tree: Tree) -> None:
    tree.write({"a.txt": FOUR, "gone": "x", "mv": "1\n2\n"})
    answer = applied(
        "*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+ONE\n two\n@@\n three\n-four\n+FOUR\n*** End of File\n\n"
        "*** Add File: d/new.txt\n+hi\n+\n+there\n\n*** Delete File: gone\n\n"
        "*** Update File: mv\n*** Move to: d/moved\n@@\n 1\n-2\n+3\n*** End Patch\n"
    )
    assert tree.read("a.txt") == b"ONE\ntwo\nthree\nFOUR\n"
    assert tree.read("d/new.txt") == b"hi\n\nthere\n"
    assert tree.read("d/moved") == b"1\n3\n"
    assert sorted(answer["files_deleted"]) == ["gone", "mv"]


def test_v4a_anchors_choose_between_equal_places(tree: Tree) -> None:
    tree.write({"c.py": "class A:\n    def run(self):\n        pass\n\nclass B:\n    def run(self):\n        pass\n"})
    applied("*** Update File: c.py\n@@ class B:\n@@     def run(self):\n-        pass\n+        return 1\n")
    assert tree.read("c.py").endswith(b"class B:\n    def run(self):\n        return 1\n")
    assert tree.read("c.py").count(b"return 1") == 1


def test_v4a_anchor_that_stands_twice_chooses_nothing(tree: Tree) -> None:
    tree.write({"c.py": "class A:\n    def run(self):\n        pass\n\nclass B:\n    def run(self):\n        pass\n"})
    refused(tree, "*** Update File: c.py\n@@ def run(self):\n-        pass\n+        return 1\n", "3", "7")


def test_v4a_update_without_hunks_is_an_error(tree: Tree) -> None:
    tree.write({"a.txt": FOUR})
    refused(tree, "*** Begin Patch\n*** Update File: a.txt\n*** Add File: b\n+x\n*** End Patch\n", "a.txt")


# Line ends, encodings ------------------------------------------------------------------------------------------------


def test_crlf_file_keeps_its_ends(tree: Tree) -> None:
    tree.write({"c": "x\r\ny\r\nz\r\n"})
    applied("--- a/c\n+++ b/c\n@@ -1,3 +1,4 @@\n x\n-y\n+Y\n+W\n z\n")
    assert tree.read("c") == b"x\r\nY\r\nW\r\nz\r\n"


def test_mixed_ends_of_shown_lines_stay(tree: Tree) -> None:
    tree.write({"c": b"a\r\nb\nc \r\nd\t\ne\r\n\xff\xfe\n"})
    applied("--- a/c\n+++ b/c\n@@ -1,5 +1,5 @@\n a\n b\n c\n-d\n+D\n e\n")
    assert tree.read("c") in (b"a\r\nb\nc \r\nD\ne\r\n\xff\xfe\n", b"a\r\nb\nc \r\nD\r\ne\r\n\xff\xfe\n")


@pytest.mark.parametrize(
    ("before", "hunk", "after"),
    [
        (b"a\nz", "@@ -1,2 +1,2 @@\n a\n-z\n\\ No newline at end of file\n+Z\n\\ No newline at end of file\n", b"a\nZ"),
        (b"a\nz", "@@ -1,2 +1,2 @@\n a\n-z\n\\ No newline at end of file\n+Z\n", b"a\nZ\n"),
        (b"a\nz\n", "@@ -1,2 +1,2 @@\n a\n-z\n+Z\n\\ No newline at end of file\n", b"a\nZ"),
        (b"a\nz", "@@ -1,2 +1,3 @@\n a\n-z\n\\ No newline at end of file\n+z\n+y\n", b"a\nz\ny\n"),
        (b"a\nz", "@@ -1,2 +1,2 @@\n-a\n+A\n z\n", b"A\nz"),  # the last line is only shown
        (b"a\nz", "@@ -1,2 +1,2 @@\n a\n-z\n+Z\n", b"a\nZ"),  # the patch knows nothing of newlines: nothing changes
    ],
)
def test_a_missing_newline_at_the_end(tree: Tree, before: bytes, hunk: str, after: bytes) -> None:
    tree.write({"f": before})
    applied("--- a/f\n+++ b/f\n" + hunk)
    assert tree.read("f") == after


def test_byte_order_mark_stays_and_hides_nothing(tree: Tree) -> None:
    tree.write({"b": b"\xef\xbb\xbfone\ntwo\n", "c": b"\xef\xbb\xbfone\ntwo\n", "d": b"\xef\xbb\xbfone\ntwo\n"})
    applied("--- a/b\n+++ b/b\n@@ -1,2 +1,2 @@\n-one\n+ONE\n two\n")
    assert tree.read("b") == b"\xef\xbb\xbfONE\ntwo\n"
    applied("--- a/c\n+++ b/c\n@@ -1,2 +1,2 @@\n-\ufeffone\n+\ufeffONE\n two\n")
    assert tree.read("c") == b"\xef\xbb\xbfONE\ntwo\n"
    replaced("d", "one\ntwo", "1\n2")
    assert tree.read("d") == b"\xef\xbb\xbf1\n2\n"


@given(st.binary(max_size=200), st.binary(max_size=200))
@CALM
def test_bytes_around_a_change_stay(tree: Tree, head: bytes, tail: bytes) -> None:
    """Whatever stands before and after, in whatever encoding and with whatever line ends."""
    if b"needle" in head + tail or head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return
    head = b"# first\n" + head + b"\n"
    tree.write({"f": head + b"needle one\n" + tail})
    applied("--- a/f\n+++ b/f\n@@ -1,1 +1,1 @@\n-needle one\n+thread two\n")
    found = tree.read("f")
    assert found.startswith(head + b"thread two")
    assert found[len(head + b"thread two") :] in (b"\n" + tail, b"\r\n" + tail)
