"""patch, what it refuses, whole and with the reason; its old and new strings; and anything at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tool_loader import Answer, Tree, applied, as_plain_user, load, refused, replaced

CALM = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
A = "--- a/a.txt\n+++ b/a.txt\n"
FOUR = "one\ntwo\nthree\nfour\n"
THREE = " two\n-three\n+THREE\n four\n"
DONE = b"one\ntwo\nTHREE\nfour\n"


@pytest.fixture
def tree(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.chdir(workspace)
    return Tree(workspace)


def swap(path: str, old: str, new: str) -> Answer:
    return {"path": path, "old_string": old, "new_string": new}


# Refusals ------------------------------------------------------------------------------------------------------------


def test_all_or_nothing_and_each_misfit_with_its_nearest_place(tree: Tree) -> None:
    tree.write({"a.txt": FOUR, "b.txt": "alpha\nbeta\ngamma\n"})
    error = refused(
        tree,
        A + "@@ -1,2 +1,2 @@\n-one\n+ONE\n two\n@@ -3,2 +3,2 @@\n three\n-fuor\n+FOUR\n"
        "--- a/b.txt\n+++ b/b.txt\n@@ -1,3 +1,3 @@\n alpha\n-betta\n+BETA\n gamma\n"
        "--- /dev/null\n+++ b/c.txt\n@@ -0,0 +1 @@\n+c\n",
        "a.txt, hunk 2", "b.txt, hunk 1", "'beta'", "line 3",
    )  # fmt: skip
    assert "a.txt, hunk 1" not in error


def test_a_hunk_in_the_air_is_refused(tree: Tree) -> None:
    tree.write({"a.txt": "x\ny\nx\ny\nx\ny\n"})
    refused(tree, A + "@@\n-x\n+X\n", "lines 1, 3, 5")
    refused(tree, A + "@@ -2 +2 @@\n-x\n+X\n", "1, 3")  # as near to the one as to the other
    refused(tree, A + "@@\n+X\n")
    refused(tree, A + "@@ -100,0 +101 @@\n+X\n")
    applied(A + "@@ -3 +3 @@\n-x\n+X\n")
    assert tree.read("a.txt") == b"x\ny\nX\ny\nx\ny\n"


@pytest.mark.parametrize(
    "patch",
    [
        A + "@@ -1,2 +1,2 @@\n one\n two\n",
        A + "@@ -1,1 +1,1 @@\n-one\n+one\n",
        "--- a/a.txt\n+++ b/a.txt\n",
        "*** Begin Patch\n*** End Patch\n",
        "*** Begin Patch\n*** Update File: a.txt\n*** End Patch\n",
        "",
        "   \n",
        "please change one to two",
        A + "@@ -1,2 +1,2 @@\n",
    ],
)
def test_a_patch_that_changes_nothing_is_an_error(tree: Tree, patch: str) -> None:
    tree.write({"a.txt": FOUR})
    refused(tree, patch)


def test_what_is_there_or_not_there_against_the_patch(tree: Tree) -> None:
    tree.write({"a.txt": FOUR, "b.txt": "b\n"})
    refused(tree, "--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+x\n", "a.txt", "there")
    refused(tree, "--- a/a.tx\n+++ b/a.tx\n@@ -1,1 +1,1 @@\n-one\n+x\n", "a.txt")  # the near name
    refused(tree, "--- a/b.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-c\n", "b.txt")
    refused(tree, "--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n", "a.txt")
    refused(tree, "diff --git a/a.txt b/b.txt\nrename from a.txt\nrename to b.txt\n", "b.txt", "there")
    refused(tree, "*** Update File: a.txt\n*** Move to: b.txt\n@@\n-one\n+ONE\n", "b.txt", "there")
    refused(tree, "*** Delete File: nope\n", "nope")
    refused(tree, "*** Delete File: b.txt\n*** Update File: b.txt\n@@\n-b\n+c\n", "b.txt")


def test_two_names_of_one_file(tree: Tree) -> None:
    """Either both changes are in, or none is: never the last one alone."""
    tree.write({"a.txt": FOUR})
    os.symlink("a.txt", "l.txt")
    args = {
        "mode": "patch",
        "patch": "--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-one\n+ONE\n--- l.txt\n+++ l.txt\n@@ -4 +4 @@\n-four\n+FOUR\n",
    }
    answer = load()["patch"](args)
    assert tree.read("a.txt") == (FOUR.encode() if "error" in answer else b"ONE\ntwo\nthree\nFOUR\n")
    assert os.path.islink("l.txt")


def test_special_files_are_refused_at_once(tree: Tree) -> None:
    os.mkfifo("ff")
    os.mkdir("dd")
    for name, word in (("ff", "FIFO"), ("dd", "directory"), ("/dev/zero", "device")):
        refused(tree, "--- %s\n+++ %s\n@@ -1 +1 @@\n-a\n+b\n" % (name, name), word)
        refused(tree, swap(name, "a", "b"), word)
    refused(tree, "--- /dev/null\n+++ b/dd\n@@ -0,0 +1 @@\n+x\n", "directory")


@pytest.mark.parametrize("kind", ["folder", "failing"])
def test_a_write_that_fails_half_way_is_rolled_back(tree: Tree, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write({"a.txt": FOUR, "gone.txt": "x\n", "ro/b.txt": "b\n"})
    os.chmod("a.txt", 0o604)
    os.chmod(tree.folder, 0o777)
    patch = (
        "*** Update File: a.txt\n@@\n-one\n+ONE\n*** Delete File: gone.txt\n"
        "*** Add File: deep/er/new.txt\n+n\n*** Update File: ro/b.txt\n@@\n-b\n+B\n"
    )
    before = tree.state()
    if kind == "folder":
        for name in ("a.txt", "gone.txt", "ro", "ro/b.txt") if os.geteuid() == 0 else ():
            os.chown(name, 65534, 65534)
        before = tree.state()
        os.chmod("ro", 0o555)
        with as_plain_user():
            error = load()["patch"]({"mode": "patch", "patch": patch})["error"]
        os.chmod("ro", 0o755)
    else:
        _break_rename(monkeypatch, "b.txt")
        error = load()["patch"]({"mode": "patch", "patch": patch})["error"]
    assert "b.txt" in error
    assert tree.state() == before


def _break_rename(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A disk that fails when the last file takes its place, after all the others have."""
    for call in ("rename", "replace"):
        real = getattr(os, call)

        def failing(source: str, target: str, *, real=real, **more: object) -> None:  # type: ignore[no-untyped-def]
            if os.path.basename(target) == name:
                raise OSError(5, "Input/output error")
            real(source, target, **more)

        monkeypatch.setattr(os, call, failing)


# Old and new strings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        ("a\nb\nc\n", "b", "B", "a\nB\nc\n"),
        ("a\nb\nc\n", "b\n", "", "a\nc\n"),
        ("x = “1”\n", 'x = "1"', 'x = "2"', 'x = "2"\n'),
        ("it’s – so\n", "it's - so", "no", "no\n"),
        ("a\u00a0b\n", "a b", "ab", "ab\n"),
        ("a  \nb\t\nc\n", "a\nb\n", "X\n", "X\nc\n"),
        ("a\nb\n", "a  \nb  \n", "X\n", "X\n"),
        ("def f():\n        x = 1\n        y = 2\n", "x = 1\ny = 2\n", "x = 3\nif x:\n    y = 4\n",
         "def f():\n        x = 3\n        if x:\n            y = 4\n"),
        ("\tif a:\n\t\tb\n", "    if a:\n        b\n", "    if c:\n        b\n", "\tif c:\n\t\tb\n"),
        ("if a:\n    b\n", "    if a:\n        b\n", "    if c:\n        d\n", "if c:\n    d\n"),
        ("    x\n        y\nz\n", "  x\n      y\n", "  x\n  w\n      y\n", "    x\n    w\n        y\nz\n"),
        ("a\r\nb\r\nc\r\n", "a\nb\n", "A\nB\nBB\n", "A\r\nB\r\nBB\r\nc\r\n"),
        ("a\r\nb\r\n", "a", "A\nAA", "A\r\nAA\r\nb\r\n"),
        ("a\nb\n", "a\r\nb\r\n", "A\r\nB\r\n", "A\nB\n"),
        ("a\nlast", "last", "end", "a\nend"),
        ("a\n  last", "last  \n", "end\n", "a\n  end"),
        ("x.y(*)\n", "x.y(*)", "\\1 $& \\g<0>", "\\1 $& \\g<0>\n"),
    ],
)  # fmt: skip
def test_tolerant_matching(tree: Tree, before: str, old: str, new: str, after: str) -> None:
    tree.write({"f": before})
    replaced("f", old, new)
    assert tree.read("f").decode() == after


def test_ambiguous_old_string_is_refused_with_the_places(tree: Tree) -> None:
    tree.write({"m": "a\nb\na\nb\n", "t": "  a\n  b\n    a\n    b\n", "o": "xaaay\n"})
    refused(tree, swap("m", "a\n", "c\n"), "1, 3")
    refused(tree, swap("t", "\ta\n\tb\n", "c\n"), "1, 3")
    refused(tree, swap("o", "aa", "b"))  # it stands there twice, the places overlap
    assert replaced("m", "a\n", "c\n", replace_all=True)["files_modified"] == ["m"]
    assert tree.read("m") == b"c\nb\nc\nb\n"
    replaced("t", "\ta\n\tb\n", "\tc\n", replace_all=True)
    assert tree.read("t") == b"  c\n    c\n"


def test_replace_refusals(tree: Tree) -> None:
    tree.write({"f": "alpha\nbeta\n“q”\n"})
    refused(tree, swap("f", "", "x"), "old_string")
    refused(tree, {"path": "f", "old_string": "alpha"}, "new_string")
    refused(tree, swap("f", "alpha", "alpha"))
    refused(tree, swap("f", '"q"', "“q”"))
    refused(tree, swap("f", "betta", "x"), "line 2", "beta")
    refused(tree, swap("g", "alpha", "x"), "g")
    refused(tree, {"old_string": "a", "new_string": "b"}, "path")
    refused(tree, {"mode": "patch"}, "patch")
    refused(tree, {})
    refused(tree, swap("f\0", "alpha", "x"))
    refused(tree, swap("f\udc80", "alpha", "x"))
    refused(tree, swap("f", "alpha", "\ud800"))


def test_mode_patch_wins_over_a_stray_old_string(tree: Tree) -> None:
    tree.write({"a.txt": FOUR})
    args = {"mode": "patch", "patch": A + "@@ -2,3 +2,3 @@\n" + THREE, "old_string": "one"}
    assert load()["patch"](args)["success"]
    assert tree.read("a.txt") == DONE


def test_a_link_is_followed_and_stays(tree: Tree) -> None:
    tree.write({"d/real": "a\n"})
    os.symlink("d/real", "l")
    replaced("l", "a", "b")
    assert os.path.islink("l")
    assert tree.read("d/real") == b"b\n"


# Anything at all -----------------------------------------------------------------------------------------------------

LINES = st.sampled_from(
    ["--- a/f", "+++ b/f", "--- /dev/null", "+++ /dev/null", "@@ -1,2 +1,2 @@", "@@ -0,0 +1 @@", "@@", "@@ x @@",
     " one",     "-one", "+two", "-", "+", " ", "", "\\ No newline at end of file",
     "diff --git a/f b/g", "rename from f",
     "rename to g", "new file mode 100755", "new mode 9", "deleted file mode 1", "*** Begin Patch", "*** End Patch",
     "*** Update File: f", "*** Add File: g", "*** Delete File: f", "*** Move to: h", "*** End of File", "```",
     "```diff", '--- "a/\\377"', '+++ "', "+\udc80", "+\ud800", "--- \0",
     "+++ \0", "*** Delete File: a\0", "rename to \0", "copy from x", "prose", "--- a", "+++ a/",
     "diff --git ", 'diff --git "a/f" b/f', "*** Update File: .", "--- ..", "+++ .."]
)  # fmt: skip


@given(st.lists(LINES, max_size=14), st.sampled_from(["one\ntwo\n", "", "\ufeffone", "one\r\none\r\n"]))
@settings(parent=CALM, max_examples=500)
def test_no_patch_raises_and_an_error_changes_nothing(tree: Tree, lines: list[str], content: str) -> None:
    for name in os.listdir():
        os.unlink(name) if not os.path.isdir(name) else shutil.rmtree(name)
    tree.write({"f": content})
    before = tree.state()
    answer = load()["patch"]({"mode": "patch", "patch": "\n".join(lines)})
    assert ("error" in answer) == (tree.state() == before), answer


@given(st.text(max_size=30), st.text(max_size=10), st.text(max_size=10), st.booleans())
@CALM
def test_no_replacement_raises(tree: Tree, text: str, old: str, new: str, everywhere: bool) -> None:
    data = text.encode("utf-8", "replace")
    tree.write({"f": data})
    answer = load()["patch"](dict(swap("f", old, new), replace_all=everywhere))
    assert ("error" in answer) == (tree.read("f") == data), answer


def test_large_files_do_not_take_long(tree: Tree) -> None:
    """A wide diff, long lines that nearly match, many hunks: each is a fraction of a second, the limit of the test is
    its own timeout."""
    lines = ["line %d" % n for n in range(60_000)]
    tree.write({"big": "\n".join(lines) + "\n", "long": ("ab" * 20_000 + "\n") * 20, "same": "x\n" * 50_000})
    refused(tree, swap("long", "ba" * 20_000 + "c", "x"))
    refused(tree, swap("same", "x\nx\ny\n", "z"))
    hunks = ["@@ -%d,3 +%d,3 @@\n line %d\n-line %d\n+LINE\n line %d\n" % (n, n, n - 1, n, n + 1)
             for n in range(100, 50_000, 250)]  # fmt: skip
    applied("--- a/big\n+++ b/big\n" + "".join(hunks))
    assert tree.read("big").count(b"LINE") == len(hunks)
    replaced("big", "line 7\n", "seven\n")


def test_a_file_too_large_to_hold_is_refused_at_once(tree: Tree) -> None:
    with open("huge", "wb") as file:
        file.write(b"text\n")
        file.truncate(2 << 30)
    refused_before = load()["patch"](swap("huge", "text", "x"))
    assert "error" in refused_before
    os.unlink("huge")
