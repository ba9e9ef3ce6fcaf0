"""Tool files are found by their syntax tree: what counts, what travels with them, and what files that lie cost."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from hermes_sandbox import discovery
from hermes_sandbox.bundled import bundled
from hermes_sandbox.discovery import MAX_SOURCE, MAX_WORDS, FactsCache, ModuleFile, discover
from hermes_sandbox.files import write_whole
from tests.support import rss

REGISTER = 'registry.register("{0}", "t", {{}}, print)\n'
IMPORT = "from tools.registry import registry\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def add(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / f"{name}.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def look(folder: Path) -> list[ModuleFile]:
    return discover(folder, FactsCache(folder / "no_cache"))


def found(folder: Path) -> dict[str, ModuleFile]:
    return {module.name: module for module in look(folder)}


@pytest.mark.parametrize(
    "text",
    [
        IMPORT + REGISTER.format("x"),
        "from tools.registry import registry as reg\nreg.register('x', 't', {}, print)\n",
        "from .registry import registry\n" + REGISTER.format("x"),
        "import tools.registry\ntools.registry.registry.register('x', 't', {}, print)\n",
        "import tools.registry as r\nr.registry.register('x', 't', {}, print)\n",
        "from tools import registry as r\nr.registry.register('x', 't', {}, print)\n",
        "from . import registry as r\nr.registry.register('x', 't', {}, print)\n",
        IMPORT + "if True:\n    " + REGISTER.format("x"),
        IMPORT + "try:\n    import nothing\nexcept ImportError:\n    " + REGISTER.format("x"),
        IMPORT + "def make():\n    " + REGISTER.format("x") + "make()\n",
        IMPORT + "registry.register(toolset='t', schema={}, handler=print, name='x')\n",
        IMPORT + "reg = registry\nreg.register('x', 't', {}, print)\n",
        "\ufeff" + IMPORT + REGISTER.format("x"),
        "# -*- coding: latin-1 -*-\n" + IMPORT + REGISTER.format("x"),
    ],
)
def test_every_way_of_registering_is_seen(folder: Path, text: str) -> None:
    add(folder, "tool", text)
    assert found(folder)["tool"].hints == ("x",)
    assert found(folder)["tool"].problem == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "registry.register('x', 't', {}, print)\n",  # whose registry?
        IMPORT,
        IMPORT + "# registry.register('x', 't', {}, print)\n",
        IMPORT + "text = \"registry.register('x', 't', {}, print)\"\n",
        "from other import registry\n" + REGISTER.format("x"),
        "import atexit\natexit.register(print)\n",
    ],
)
def test_what_registers_nothing_is_no_tool_file(folder: Path, text: str) -> None:
    add(folder, "tool", text)
    assert found(folder) == {}


@pytest.mark.parametrize("name", ["two-words", "1st", "two words", "new\nline", "\x1b[2J"])
def test_a_name_that_is_no_modules_is_a_problem_and_paints_nothing(folder: Path, name: str) -> None:
    add(folder, name, IMPORT + REGISTER.format("x"))
    (module,) = look(folder)
    assert "no name of a Python module" in module.problem
    assert module.key.isprintable()


def test_files_that_are_hidden_private_or_no_python_are_left_out(folder: Path) -> None:
    for name in (".hidden", "_private", "registry"):
        add(folder, name, IMPORT + REGISTER.format("x"))
    (folder / "text.txt").write_text(IMPORT + REGISTER.format("x"), encoding="utf-8")
    assert found(folder) == {}


def test_a_folder_that_is_not_there_has_none(folder: Path) -> None:
    assert look(folder / "missing") == []


def test_siblings_travel_as_far_as_they_are_needed(folder: Path) -> None:
    add(folder, "tool", IMPORT + "from tools import first\nfrom tools._second import x\n" + REGISTER.format("x"))
    add(folder, "first", "from . import _third\n")
    add(folder, "_second", "def f():\n    from tools.tool import y\n    import tools._fourth\n")
    add(folder, "_third", "import os\n")
    add(folder, "_fourth", "")
    add(folder, "unrelated", "")
    tool = found(folder)["tool"]
    assert tool.siblings == ("_fourth", "_second", "_third", "first")
    assert set(tool.files()) == {"tool.py", "_fourth.py", "_second.py", "_third.py", "first.py"}


def test_the_digest_covers_what_travels_and_nothing_else(folder: Path) -> None:
    add(folder, "tool", IMPORT + "from tools import helper\n" + REGISTER.format("x"))
    add(folder, "helper", "VALUE = 1\n")
    before = found(folder)["tool"].digest
    add(folder, "unrelated", "VALUE = 1\n")
    os.utime(folder / "helper.py", (0, 0))
    assert found(folder)["tool"].digest == before
    add(folder, "helper", "VALUE = 2\n")
    assert found(folder)["tool"].digest != before


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def (:\n", "line 1"),
        (IMPORT + REGISTER.format("x") + "\n)\n", "line 4"),
        (b"\xff\xfe\x00", "no Python"),
        (b"x = '\x00'\n", "no Python"),
        ("(" * 5000, "no Python"),
        ("-" * 90_000 + "1", "no Python"),
        ("a;" * 200_000, "words and signs"),
        (IMPORT + REGISTER.format("x") + "f'" + "{a}" * 100_000 + "'", "words and signs"),
        ("# -*- coding: no-such-codec -*-\n", "no Python"),
        ("#" * (MAX_SOURCE + 1), f"more than {MAX_SOURCE}"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_a_problem_with_a_reason(folder: Path, text: str | bytes, why: str) -> None:
    add(folder, "bad", text)
    add(folder, "good", IMPORT + REGISTER.format("x"))
    modules = found(folder)
    assert why in modules["bad"].problem
    assert modules["good"].problem == ""


def test_what_is_no_file_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "fifo.py")
    (folder / "folder.py").mkdir()
    (folder / "loop.py").symlink_to("loop.py")
    (folder / "nowhere.py").symlink_to("missing")
    (folder / "zero.py").symlink_to("/dev/zero")
    add(folder, "good", IMPORT + REGISTER.format("x"))
    began = time.monotonic()
    modules = found(folder)
    assert time.monotonic() - began < 2
    assert modules.pop("good").problem == ""
    assert set(modules) == {"fifo", "folder", "loop", "nowhere", "zero"}
    assert all(module.problem for module in modules.values())


def test_a_broken_sibling_is_its_own_problem_only(folder: Path) -> None:
    add(folder, "tool", IMPORT + "from tools import broken\n" + REGISTER.format("x"))
    add(folder, "broken", "def (:\n")
    assert found(folder)["tool"].siblings == ()
    assert found(folder)["broken"].problem


def test_the_order_is_that_of_the_names(folder: Path) -> None:
    for name in ("b", "a", "C"):
        add(folder, name, IMPORT + REGISTER.format(name))
    assert [module.name for module in look(folder)] == ["C", "a", "b"]


def test_nothing_is_imported(folder: Path) -> None:
    add(folder, "tool", IMPORT + REGISTER.format("x") + f"open({str(folder / 'ran')!r}, 'w')\n")
    look(folder)
    assert not (folder / "ran").exists()


def test_the_bundled_tools_are_found() -> None:
    modules = {module.name: module for module in look(bundled("tool_modules"))}
    assert "file_tools" in modules
    assert not any(module.problem for module in modules.values())


def test_facts_are_kept_by_content_and_a_damaged_cache_counts_as_absent(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "facts.json"
    add(folder, "tool", IMPORT + REGISTER.format("x"))
    add(folder, "bad", "def (:\n")
    for damage in (None, b"", b"[1", b'{"a": 1}', b"\xff", b"[" * 100_000):
        if damage is not None:
            path.write_bytes(damage)
        cache = FactsCache(path)
        assert [module.name for module in discover(folder, cache)] == ["bad", "tool"]
        cache.save()
    fresh = FactsCache(path)
    assert discover(folder, fresh) == look(folder)
    add(folder, "tool", "")
    assert [module.name for module in discover(folder, FactsCache(path))] == ["bad"]


def test_the_parsers_warnings_about_strangers_files_are_not_ours(
    folder: Path, recwarn: pytest.WarningsRecorder
) -> None:
    add(folder, "tool", IMPORT + REGISTER.format("x") + 'pattern = "\\d"\nif pattern is "x": pass\n')
    assert found(folder)["tool"].problem == ""
    assert not recwarn.list


def test_long_chains_of_names_are_no_trouble(folder: Path) -> None:
    """They parse, but are too long for whatever walks them by recursion."""
    add(folder, "tool", IMPORT + "registry" + ".a" * 900 + ".register('y')\n" + REGISTER.format("x"))
    assert found(folder)["tool"].hints == ("x",)


def test_a_dense_file_below_the_limit_costs_little(folder: Path) -> None:
    add(folder, "statements", IMPORT + REGISTER.format("x") + "a;" * (MAX_WORDS // 2 - 50))
    add(folder, "text", IMPORT + REGISTER.format("x") + "f'" + "{a}" * (MAX_WORDS // 3 - 50) + "'")
    before, began = rss(), time.monotonic()
    assert set(found(folder)) == {"statements", "text"}
    assert time.monotonic() - began < 10
    assert rss() - before < 200 << 20


def test_facts_of_another_version_count_as_absent(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "facts.json"
    add(folder, "tool", IMPORT + REGISTER.format("x"))
    cache = FactsCache(path)
    discover(folder, cache)
    cache.save()
    path.write_bytes(path.read_bytes().replace(b"true", b"false"))
    assert discover(folder, FactsCache(path)) == []  # it is believed,
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    assert [module.name for module in discover(folder, FactsCache(path))] == ["tool"]  # unless others wrote it


def test_a_cache_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "facts.json").mkdir()
    write_whole(tmp_path / "facts.json", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["facts.json"]


@pytest.mark.parametrize(
    "text",
    [b"f'" + b" " * 900_000 + b"{a}" * 32_000 + b"'", (b"{a}" + b" " * 35) * 24_000, b"{a}" * 32_000],
    ids=["a long way", "wide", "close"],
)
def test_an_f_string_that_takes_the_parser_long_is_a_problem(folder: Path, text: bytes) -> None:
    add(folder, "slow", IMPORT.encode() + (text if text.startswith(b"f") else b"f'" + text + b"'"))
    began = time.monotonic()
    assert "braces" in found(folder)["slow"].problem
    assert time.monotonic() - began < 0.5


def test_what_many_files_cost_together_is_bounded_and_the_next_start_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "MAX_EFFORT", 1_000_000)
    for name in "abc":
        add(folder, name, IMPORT + REGISTER.format(name) + "x = 1\n" * 400)
    cache = FactsCache(folder / "cache")
    assert [bool(module.problem) for module in discover(folder, cache)] == [False, True, True]
    cache.save()
    assert [bool(module.problem) for module in discover(folder, FactsCache(folder / "cache"))] == [False, False, True]


def test_only_names_that_a_tool_may_have_are_hints(folder: Path) -> None:
    names = [r"\udcff", "", "a b", "x" * 65, "good-1"]
    add(folder, "m", IMPORT + "".join(REGISTER.format(name) for name in names))
    cache = FactsCache(folder / "cache")
    (module,) = discover(folder, cache)
    assert module.hints == ("good-1",)
    cache.save()
    assert (folder / "cache").exists()


def test_a_cache_that_cannot_be_encoded_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_facts", lambda text: discovery.Facts(problem="\udcff"))
    cache = FactsCache(folder / "cache")
    cache.facts("0", b"")
    cache.save()
    assert not (folder / "cache").exists()


def test_whatever_the_parser_raises_is_that_files_problem(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: bytes) -> None:
        raise SystemError("a defect of the parser's")

    add(folder, "m", IMPORT + REGISTER.format("t"))
    monkeypatch.setattr("ast.parse", fail)
    assert found(folder)["m"].problem == "it cannot be parsed: SystemError"
