"""search_files: the same answer from ripgrep and from `re`, of the files that git would see, with true totals."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tool_loader import Answer, Tree, as_plain_user, load

CALM = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
HAS_RIPGREP = shutil.which("rg") is not None
PATH = os.environ["PATH"]
ROOT = Path(__file__).parent.parent


@pytest.fixture
def tree(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.chdir(workspace)
    return Tree(workspace)


@pytest.fixture(params=["ripgrep", "re"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both engines in turn: without a PATH there is no ripgrep."""
    if request.param == "re":
        monkeypatch.setenv("PATH", "/nowhere")
    elif not HAS_RIPGREP:
        pytest.skip("no ripgrep here")
    return str(request.param)


def search(pattern: str, **more: object) -> Answer:
    answer = load()["search_files"](dict({"pattern": pattern}, **more))
    assert "error" not in answer, answer
    return answer


def failing(pattern: str, **more: object) -> str:
    return str(load()["search_files"](dict({"pattern": pattern}, **more))["error"])


def hits(answer: Answer) -> list[tuple[str, int, str]]:
    return [(each["path"], each["line"], each["text"]) for each in answer["matches"]]


# Content -------------------------------------------------------------------------------------------------------------


def test_lines_files_and_counts(tree: Tree, engine: str) -> None:
    tree.write({"b.txt": "x\ny\nx x\n", "a/with blank.txt": "x\r\nz", "c.bin": b"x\n\0", "d.txt": "none\n"})
    answer = search("x")
    assert answer["engine"] == engine
    assert hits(answer) == [("a/with blank.txt", 1, "x"), ("b.txt", 1, "x"), ("b.txt", 3, "x x")]
    assert (answer["total_count"], answer["truncated"]) == (3, False)
    files = search("x", output_mode="files_only")
    assert (files["files"], files["total_count"]) == (["a/with blank.txt", "b.txt"], 2)
    counts = search("x", output_mode="count")
    assert counts["counts"] == [{"path": "a/with blank.txt", "count": 1}, {"path": "b.txt", "count": 2}]


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("-e", "a -e b"), ("--files", "x --files"), ("-", "-"), ("--", "--"), ("-v|--help", "--help"),
        ("foo|bar", "bar"),
        (r"\|", "a|b"), (r"a\.b\(", "a.b("), (r"\$HOME", "$HOME"), ("'\"", "'\""), ("`x`", "`x`"), ("^a b$", "a b"),
        (r"\bw\b", "a w b"), (r"\d+", "a1"), ("[^a]z", "bz"), ("(?i)HELLO", "say hello"), ("ä+", "xää"),
        (r"\\", "a\\b"),
        ("", "anything"), ("a{2}", "aa"), ("x*$", "q"), (r"\t", "a\tb"), ("#", "#"), ("!", "!"),
    ],
)  # fmt: skip
def test_patterns_that_look_like_something_else(tree: Tree, engine: str, pattern: str, line: str) -> None:
    tree.write({"f.txt": "\n" + line + "\n", "e.txt": "\u00b7\n"})
    answer = search(pattern)
    assert answer["engine"] == engine
    assert ("f.txt", 2, line) in hits(answer)


@pytest.mark.parametrize(
    ("pattern", "line"), [(r"foo(?=bar)", "foobar"), (r"(?<!x)y", "zy"), (r"(a)\1", "aa"), ("a{", "a{")]
)
def test_what_ripgrep_rejects_goes_to_re(tree: Tree, pattern: str, line: str) -> None:
    tree.write({"f.txt": line + "\nother\n"})
    answer = search(pattern)
    assert answer["engine"] == "re"
    assert hits(answer) == [("f.txt", 1, line)]


@pytest.mark.parametrize("pattern", ["(", "[", "*", "(?P<x", "\\", "a\nb", "a\\nb", "a{2,1}"])
def test_patterns_that_are_none_are_errors_not_empty_answers(tree: Tree, engine: str, pattern: str) -> None:
    tree.write({"f.txt": "x\n"})
    assert "pattern" in failing(pattern)


@pytest.mark.parametrize(
    "pattern", ["a\0b", "\ud800", chr(0xDC80), "x" * 300_000, "(" * 200 + ")" * 200, "(a{1000}){1000}"]
)
def test_odd_patterns_are_answered(tree: Tree, engine: str, pattern: str) -> None:
    tree.write({"f.txt": "text\n"})
    load()["search_files"]({"pattern": pattern})
    load()["search_files"]({"pattern": pattern, "target": "files"})
    load()["search_files"]({"pattern": "text", "file_glob": pattern})


def test_pages_add_up_to_the_whole(tree: Tree, engine: str) -> None:
    tree.write({"d/f%02d" % n: "hit\n" * (n % 4) for n in range(30)})
    whole = hits(search("hit", limit=1000))
    assert len(whole) == sum(n % 4 for n in range(30))
    for mode, key, total in (("content", "matches", len(whole)), ("files_only", "files", 22)):
        found: list[object] = []
        offset = 0
        while True:
            page = search("hit", output_mode=mode, offset=offset, limit=7)
            assert page["total_count"] == total
            found += page[key]
            if not page["truncated"]:
                break
            offset = page["next_offset"]
        assert len(found) == total
        assert [str(each) for each in found] == [str(each) for each in search("hit", output_mode=mode, limit=1000)[key]]
    assert search("hit", offset=1000)["matches"] == []
    assert search("hit", offset=1000)["truncated"] is False


def test_context(tree: Tree, engine: str) -> None:
    tree.write({"f": "1\r\n2\r\nhit\r\n4\r\n5\r\n6\r\n", "g": "hit", "w": "\ufeffa\nhit\nb\n".encode("utf-16-le")})
    found = {each["path"]: each for each in search("hit", context=2)["matches"]}
    assert (found["f"]["before"], found["f"]["after"]) == (["1", "2"], ["4", "5"])
    assert (found["g"]["before"], found["g"]["after"]) == ([], [])
    assert (found["w"]["before"], found["w"]["after"]) == (["a"], ["b"])


def test_encodings_and_binary(tree: Tree, engine: str) -> None:
    tree.write(
        {
            "bom": b"\xef\xbb\xbfneedle\n", "utf16": "\ufeffneedle ä\n".encode("utf-16-le"),
            "latin": b"\xe4 needle \xff\n",
            "late": b"needle\n" + b"x\n" * 100_000 + b"\0", "early": b"\0needle\n", "utf32": "needle".encode("utf-32"),
            "long": b"z" * 300_000 + b"needle" + b"z" * 300_000,
        }
    )  # fmt: skip
    answer = search("needle")
    assert [each["path"] for each in answer["matches"]] == ["bom", "latin", "long", "utf16"]
    texts = {each["path"]: each["text"] for each in answer["matches"]}
    assert (texts["bom"], texts["utf16"]) == ("needle", "needle ä")
    assert "needle" in texts["latin"]
    assert len(texts["long"]) < 2000
    assert search("^needle", path="bom")["total_count"] == 1
    assert search("needle", path="late")["total_count"] == 0  # a file that is given is no other file for it


def test_a_place_that_cannot_be_searched_is_an_error(tree: Tree, engine: str) -> None:
    os.mkfifo("fifo")
    os.mkdir("closed")
    tree.write({"settings.py": "x"})
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for path, word in (("fifo", "FIFO"), ("socket", "socket"), ("/dev/zero", "device"),
                           ("setings.py", "settings.py"),                           ("nothing",
                           "not there"), ("a\0b", "path"), ("\ud800", "path")):  # fmt: skip
            assert word in failing("x", path=path)
            assert word in failing("x", path=path, target="files")
    os.chmod("closed", 0)
    with as_plain_user():
        assert "ermission" in failing("x", path="closed")
    assert hits(search("x")) == [("settings.py", 1, "x")]  # on the way to others they are passed over


def test_links_are_not_followed_but_may_be_given(tree: Tree, engine: str) -> None:
    tree.write({"d/f": "x\n"})
    os.symlink(".", "d/loop")
    os.symlink("d", "e")
    os.symlink("d/f", "g")
    os.symlink("nowhere", "h")
    assert hits(search("x")) == [("d/f", 1, "x")]
    assert hits(search("x", path="e")) == [("e/f", 1, "x")]
    assert hits(search("x", path="g")) == [("g", 1, "x")]


def test_file_glob_and_paths(tree: Tree, engine: str) -> None:
    tree.write({"a.py": "x", "b.txt": "x", "s/c.py": "x", "s/d [1].py": "x", "-n": "x", "s/t/e.md": "x"})
    paths = {glob: [each["path"] for each in search("x", file_glob=glob)["matches"]]
             for glob in ("*.py", "*.{txt,md}", "s/*.py", "s/**", "-*", "?.py", "[!a].*", "")}  # fmt: skip
    assert paths == {
        "*.py": ["a.py", "s/c.py", "s/d [1].py"], "*.{txt,md}": ["b.txt", "s/t/e.md"],
        "s/*.py": ["s/c.py", "s/d [1].py"],
        "s/**": ["s/c.py", "s/d [1].py", "s/t/e.md"], "-*": ["-n"], "?.py": ["a.py", "s/c.py"],
        "[!a].*": ["b.txt", "s/c.py", "s/t/e.md"], "": ["-n", "a.py", "b.txt", "s/c.py", "s/d [1].py", "s/t/e.md"],
    }  # fmt: skip
    assert hits(search("x", path="./s/t/")) == [("s/t/e.md", 1, "x")]
    assert hits(search("x", path="-n")) == [("-n", 1, "x")]
    absolute = str(tree.folder / "s")
    assert hits(search("x", path=absolute))[0][0] == absolute + "/c.py"


def test_a_ripgrep_that_cannot_run_is_no_ripgrep(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write({"bin/rg": b"\x7fELF nonsense", "f": "x\n"})
    os.chmod("bin/rg", 0o755)
    monkeypatch.setenv("PATH", str(tree.folder / "bin"))
    answer = search("x", path="f")
    assert (answer["engine"], hits(answer)) == ("re", [("f", 1, "x")])


def test_a_ripgrep_that_dies_is_no_empty_answer(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write({"bin/rg": "#!/bin/sh\nkill -9 $$\n", "f": "x\n"})
    os.chmod("bin/rg", 0o755)
    monkeypatch.setenv("PATH", str(tree.folder / "bin") + ":" + PATH)
    answer = load()["search_files"]({"pattern": "x", "path": "f"})
    assert "error" in answer or answer["total_count"] == 1


def test_very_deep_folders(tree: Tree, engine: str) -> None:
    """Deeper than Python's recursion, though not than a path may be long."""
    deep = ""
    for _level in range(1500):
        deep += "d/"
        os.mkdir(deep)
    try:
        tree.write({deep + "f": "x\n"})
        assert search("x")["total_count"] == 1
        assert search("f", target="files")["total_count"] == 1
    finally:  # Python's own rmtree gives up before this depth
        subprocess.run(["rm", "-r", "d"], check=True, env={"PATH": PATH})


@pytest.mark.parametrize(("offset", "most"), [(0, 40 << 10), (199_997, 160 << 10)])  # KiB
def test_200_000_hits_take_little_memory(tree: Tree, engine: str, offset: int, most: int) -> None:
    """The hits of a page are kept, those before it at most for a moment, the others never. It is asked of a process of
    its own, as a peak is never taken back."""
    tree.write({"big": "a line of some sixty characters to be found, again and again\n" * 200_000})
    argv = [sys.executable, "-c", MEASURED, str(offset)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(argv, env=env, cwd=tree.folder, capture_output=True, check=True).stdout.split()
    total, shown, grown = (int(each) for each in found)
    assert (total, shown) == (200_000, min(5, 200_000 - offset))
    assert grown < most


MEASURED = """
import resource, sys
from tests.tool_loader import load
search = load()["search_files"]
search({"pattern": "nowhere in it"})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
answer = search({"pattern": "found", "limit": 5, "offset": int(sys.argv[1])})
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(answer["total_count"], len(answer["matches"]), grown)
"""


def test_context_of_a_large_file_is_read_once(tree: Tree, engine: str) -> None:
    tree.write({"big": ("x" * 99 + "\n") * 300_000})
    begun = time.monotonic()
    answer = search("x", context=1, limit=100, offset=100_000)
    assert len(answer["matches"]) == 100
    assert time.monotonic() - begun < 10  # s; once for each hit would be 100 times 30 MB


# Which files ---------------------------------------------------------------------------------------------------------


def test_gitignore(tree: Tree, engine: str) -> None:
    tree.write(
        {
            ".gitignore": "*.log\n!keep.log\n/only-here\nbuild/\ndoc/**/x\n**/deep\n"
            "# no\n\\#yes\nlast \nesc\\ \n[ab].c\nq?z\n",
            "s/.gitignore": "*.tmp\n!back.log\n",
            **dict.fromkeys(
                ["a.log", "keep.log", "only-here", "s/only-here", "build/x", "s/build/x", "s/build2", "doc/x",
                 "doc/1/2/x",                 "doc/y", "s/deep/f", "#yes", "last", "esc ", "a.c",
                 "c.c", "qxz", "qz", "s/m.tmp", "m.tmp",
                 "s/back.log",                 ".hidden", ".h/f"],
                "x\n",
            ),
        }
    )  # fmt: skip
    names = ["c.c", "doc/y", "keep.log", "m.tmp", "qz", "s/back.log", "s/build2", "s/only-here"]
    assert [each["path"] for each in search("x", limit=100)["matches"]] == names
    assert search("*", target="files")["files"] == names
    assert search("x", path="a.log")["total_count"] == 1  # what is named is searched
    assert search("x", path="build")["total_count"] == 1


def test_gitignore_of_the_folders_above(tree: Tree, engine: str) -> None:
    """A search of a part sees what a search of the whole sees of it."""
    tree.write({".gitignore": "*.log\n/s/gen/\n", "s/a.log": "x", "s/gen/f": "x", "s/ok": "x"})
    assert hits(search("x", path="s")) == [("s/ok", 1, "x")]
    assert search("*", target="files", path="s")["files"] == ["s/ok"]


NAMES = st.sampled_from(["a", "b", "c.log", "d.txt", "e f", "ab", "#x", "!y", "z[1]", "-r", "ä"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
IGNORES = st.sampled_from(
    ["a", "b/", "/a", "*.log", "!c.log", "a/b", "a/**", "**/b", "a/**/b", "!a/", "!a", "*", "!*/", "[a-c]", "[!a]", "?",
     "e f", "e\\ f", "a ", "\\#x", "\\!y", "#", "z[[]1]", "**", "a*", "*b", "/*/b", "/", "ä", "a/*",
     "!/a/b", "***", "b**"]
)  # fmt: skip
TREES = st.tuples(
    st.sets(PATHS, max_size=12),
    st.dictionaries(st.sampled_from(["", "a/", "a/b/", "b/"]), st.lists(IGNORES, max_size=5), max_size=3),
)


def plant(tree: Tree, paths: set[str], ignores: dict[str, list[str]], contents: list[bytes]) -> None:
    for name in os.listdir():
        if name != ".git":
            shutil.rmtree(name) if os.path.isdir(name) and not os.path.islink(name) else os.unlink(name)
    ignored: dict[str, bytes | str] = {where + ".gitignore": "\n".join(lines) for where, lines in ignores.items()}
    named = sorted(paths)
    files = {path: contents[n % len(contents)] for n, path in enumerate(named)}
    for path, content in [*ignored.items(), *files.items()]:
        above = [str(each) for each in Path(path).parents][:-1]
        if not any(os.path.isfile(each) for each in above) and not os.path.isdir(path):
            tree.write({path: content})


@given(TREES)
@settings(parent=CALM, max_examples=200)
def test_git_as_the_judge_of_which_files(tree: Tree, drawn: tuple[set[str], dict[str, list[str]]]) -> None:
    if shutil.which("git") is None:
        pytest.skip("no git here")
    if not os.path.isdir(".git"):
        subprocess.run(["git", "init", "-q"], check=True)
    plant(tree, *drawn, [b"x\n"])
    argv = "git -c core.excludesFile=/dev/null ls-files -z --others --exclude-standard".split()
    listed = os.fsdecode(subprocess.run(argv, capture_output=True, check=True).stdout).split("\0")
    wanted = sorted(each for each in listed if each and not each.endswith(".gitignore"))
    assert sorted(search("*", target="files", limit=1000)["files"]) == wanted


LINES = st.lists(
    st.sampled_from([b"foo", b"bar foo", b"", b"a|b", b"-x", b"Foo\r", b"\xff foo", b"f\xc3\xb6o", b"1 2", b" \t",
                     b"a.b", b"\0",                     b"foo" + b"o" * 900, b"}", b"foo bar"]),
    max_size=6,
)  # fmt: skip
PATTERNS = st.sampled_from(
    ["foo", "^foo", "foo$", "^$", "", "f.o", r"\bfoo\b", "a|b", r"a\|b", "-x", r"\d", r"\s$", "[a-f]o", "(?i)FOO",
     "o+", "^-",     r"\.", "ö", "f[^a]o", "(foo|bar) (foo|bar)", "x{1,2}", r"\w+ \w+", r"^\s*$", "}", "b$", r"\S"]
)  # fmt: skip


@given(TREES, st.lists(LINES.map(b"\n".join), min_size=1, max_size=4), st.booleans(), PATTERNS, st.integers(0, 4))
@settings(parent=CALM, max_examples=100)
def test_both_engines_answer_the_same(
    tree: Tree,
    drawn: tuple[set[str], dict[str, list[str]]],
    contents: list[bytes],
    end: bool,
    pattern: str,
    offset: int,
) -> None:
    if not HAS_RIPGREP:
        pytest.skip("no ripgrep here")
    plant(tree, *drawn, [each + b"\n" * end for each in contents])
    for mode in ("content", "files_only", "count"):
        args = {"output_mode": mode, "limit": 5, "offset": offset, "context": 1}
        answers = {}
        for engine, path in (("ripgrep", PATH), ("re", "/nowhere")):
            os.environ["PATH"] = path
            try:
                answers[engine] = search(pattern, **args)
            finally:
                os.environ["PATH"] = PATH
            assert answers[engine].pop("engine") == engine
        assert answers["ripgrep"] == answers["re"]


# Files by name -------------------------------------------------------------------------------------------------------


def test_files_by_name(tree: Tree, engine: str) -> None:
    tree.write(dict.fromkeys(["a.py", "s/b.py", "s/Tests/c.md", "s/d [x].txt"], ""))

    def found(pattern: str, **more: object) -> list[str]:
        return list(search(pattern, target="files", **more)["files"])

    assert found("*.py") == ["a.py", "s/b.py"]
    assert found("./s/*.py") == ["s/b.py"]
    assert found("s/**") == ["s/Tests/c.md", "s/b.py", "s/d [x].txt"]
    assert found("B.P") == ["s/b.py"]
    assert found("tests/") == ["s/Tests/c.md"]
    assert found("**/*.{md,txt}") == ["s/Tests/c.md", "s/d [x].txt"]
    assert found("nothing") == []
    assert found("*", path="s/b.py") == ["s/b.py"]
    page = search("*", target="files", limit=2, offset=1)
    assert (page["files"], page["total_count"], page["truncated"], page["next_offset"]) == (
        ["s/Tests/c.md", "s/b.py"], 4, True, 3,
    )  # fmt: skip


def test_names_that_are_no_text(tree: Tree, engine: str) -> None:
    with open(b"n\xff.txt", "wb") as file:
        file.write(b"x\n")
    assert search("x")["total_count"] == 1
    assert search("*.txt", target="files")["total_count"] == 1


@given(st.text(max_size=12), st.sampled_from(["content", "files"]), st.text(max_size=12), st.text(max_size=6))
@settings(parent=CALM, max_examples=200)
def test_nothing_raises(tree: Tree, pattern: str, target: str, glob: str, path: str) -> None:
    tree.write({"f.txt": "x\n"})
    path = "." if path.startswith("/") or ".." in path else path
    load()["search_files"]({"pattern": pattern, "target": target, "file_glob": glob, "path": path})
