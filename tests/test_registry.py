"""Metadata of tools: what modules say is a stranger's word, and a name has one owner."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_sandbox.bundled import bundled
from hermes_sandbox.config import Config, Tool
from hermes_sandbox.discovery import MAX_CACHE, ModuleFile
from hermes_sandbox.errors import Unavailable
from hermes_sandbox.registry import MAX_CACHED, MAX_TOOLS, DescribeCache, DescribeReport, Registry
from hermes_sandbox.worker import wire

OURS = bundled("tool_modules")
USERS = Path("/home/somebody/.hermes/tools")
SCHEMA = {"description": "What it does", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}


def entry(name: str = "t", toolset: str = "s", **more: Any) -> dict[str, Any]:
    return {"name": name, "toolset": toolset, "schema": SCHEMA, **more}


def module(name: str = "m", folder: Path = OURS, hints: tuple[str, ...] = ()) -> ModuleFile:
    return ModuleFile(folder=folder, name=name, hints=hints, digest="0" * 64)


def load(*found: tuple[ModuleFile, list[dict[str, Any]] | str], config: Config | None = None) -> Registry:
    """A registry with modules, each with its registrations, or with the reason why there are none."""
    registry = Registry(config or Config())
    reports = {
        each.key: DescribeReport([], problem=said) if isinstance(said, str) else DescribeReport(said)
        for each, said in found
    }
    registry.load([each for each, _ in found], reports)
    return registry


def test_what_is_registered_is_there() -> None:
    more = {"requires_env": ["KEY"], "is_async": True, "has_check": True, "emoji": "X", "extra": ["unknown_keyword"]}
    tool = load((module(), [entry(max_result_size_chars=5.0, **more)])).get("t")
    assert (tool.toolset, tool.description, tool.parameters) == ("s", "What it does", SCHEMA["parameters"])
    assert (tool.requires_env, tool.is_async, tool.has_check, tool.has_overrides) == (("KEY",), True, True, False)
    assert (tool.emoji, tool.max_result_size_chars, tool.extra) == ("X", 5.0, ("unknown_keyword",))
    assert tool.module == tool.group == str(OURS / "m.py")


def test_an_own_description_goes_before_the_schemas() -> None:
    assert load((module(), [entry(description="Own")])).get("t").description == "Own"


def test_tools_of_one_group_share_a_worker_within_a_folder() -> None:
    config = Config(tools={name: Tool(group="g") for name in ("a", "b", "c")})
    registry = load(
        (module("one"), [entry("a"), entry("free")]), (module("two"), [entry("b")]), (module("x", USERS), [entry("c")]),
        config=config,
    )  # fmt: skip
    groups = {tool.name: tool.group for tool in registry.tools()}
    assert groups["a"] == groups["b"]
    assert groups["c"] not in (groups["a"], "g")  # a user's file is never put into the worker of a bundled one
    assert groups["free"] != groups["a"]


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (entry("has blank"), "a tool's name is"),
        (entry(""), "a tool's name is"),
        (entry("x" * 65), "a tool's name is"),
        (entry("new\nline"), "a tool's name is"),
        (entry("\u0430"), "a tool's name is"),  # a Cyrillic letter that looks like a Latin one
        (entry(toolset="a/b"), "a toolset's name is"),
        (entry(schema={"parameters": {"properties": {"a": {"type": "wrong"}}}}), "not sound"),
        (entry(schema="text"), "Expected `object`"),
        (entry(is_async="yes"), "Expected `bool`"),
        ({"name": "t"}, "missing required field"),
        ({}, "missing required field"),
        (entry(name=5), "Expected `str`"),
    ],
)
def test_a_bad_registration_is_a_problem_of_its_own(raw: dict[str, Any], told: str) -> None:
    registry = load((module(), [raw, entry("good")]))
    assert [tool.name for tool in registry.tools()] == ["good"]
    ((where, reason),) = registry.problems().items()
    assert where.startswith(str(OURS / "m.py"))
    assert where.isprintable()
    assert told in reason


def test_what_is_said_paints_no_terminal() -> None:
    hostile = "red \x1b[31m\x07 \u202e\u200b\x00 end\nnext"
    tool = load((module(), [entry(description=hostile, emoji="\x1b[2J", extra=["\x1b"], requires_env=["A\x1bB"])])).get(
        "t"
    )
    assert tool.description == "red [31m  end\nnext"
    assert (tool.emoji, tool.extra, tool.requires_env) == ("[2J", ("",), ("AB",))


def test_a_reason_paints_no_terminal_either() -> None:
    registry = load(
        (module("a"), "ValueError: \x1b[2J\x07" + "x" * 100_000),
        (module("b"), [entry(schema={"parameters": {"properties": {"a": {"pattern": "(\x1b[2J"}}}})]),
    )
    for reason in registry.problems().values():
        assert "\x1b" not in reason
        assert "\x07" not in reason
        assert len(reason) <= 2000


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    "name toolset schema requires_env is_async has_check has_overrides description emoji extra override".split()
)


@given(st.lists(st.dictionaries(FIELDS, JUNK).map(lambda junk: {**entry(), **junk}) | st.dictionaries(FIELDS, JUNK)))
def test_whatever_a_worker_reports_costs_the_others_nothing(raw: list[dict[str, Any]]) -> None:
    registry = load((module("a"), raw), (module("b"), [entry("good")]))
    assert registry.get("good").module == str(OURS / "b.py")
    registry.definitions([tool.name for tool in registry.tools()])


def test_a_modules_number_of_tools_is_bounded_and_the_rest_is_told() -> None:
    registry = load((module(), [entry(f"t{n}") for n in range(MAX_TOOLS + 5)]))
    assert len(registry.tools()) == MAX_TOOLS
    assert any(str(MAX_TOOLS) in reason for reason in registry.problems().values())


# Conflicts --------------------------------------------------------------------------------------------------------


def owner(registry: Registry, name: str = "t") -> tuple[str, str]:
    tool = registry.get(name)
    return tool.module, tool.toolset


def test_within_one_toolset_of_a_folder_the_later_one_replaces() -> None:
    registry = load((module("a"), [entry()]), (module("b"), [entry()]))
    assert owner(registry) == (str(OURS / "b.py"), "s")
    assert registry.problems() == {}


def test_a_name_of_another_toolset_is_kept_and_the_refusal_told() -> None:
    registry = load((module("a"), [entry()]), (module("b"), [entry(toolset="other")]))
    assert owner(registry) == (str(OURS / "a.py"), "s")
    assert "override=True" in registry.problems()[f"{OURS / 'b.py'}: t"]


def test_override_replaces_in_the_same_folder() -> None:
    registry = load((module("a"), [entry()]), (module("b"), [entry(toolset="other", override=True)]))
    assert owner(registry) == (str(OURS / "b.py"), "other")


@pytest.mark.parametrize("more", [{}, {"override": True}, {"toolset": "other", "override": True}])
def test_a_users_file_does_not_replace_a_bundled_tool(more: dict[str, Any]) -> None:
    registry = load((module("a"), [entry()]), (module("mine", USERS), [entry(**more)]))
    assert owner(registry) == (str(OURS / "a.py"), "s")
    assert '[tools.t] module = "user:mine"' in registry.problems()[f"{USERS / 'mine.py'}: t"]


def test_unless_the_operator_pins_it() -> None:
    pinned = Config(tools={"t": Tool(module="user:mine")})
    ours, mine, other = (module("a"), [entry()]), (module("mine", USERS), [entry()]), (module("z", USERS), [entry()])
    registry = load(ours, mine, other, config=pinned)
    assert owner(registry)[0] == str(USERS / "mine.py")
    assert set(registry.problems()) == {f"{USERS / 'z.py'}: t"}
    assert all("mine.py" in reason for reason in registry.problems().values())


def test_a_pin_that_nobody_meets_says_why_the_tool_is_gone() -> None:
    registry = load((module("a"), [entry()]), config=Config(tools={"t": Tool(module="user:mine")}))
    with pytest.raises(Unavailable, match=r"'t' did not load: mine\.py of the user's tools is not there") as caught:
        registry.get("t")
    assert "toolsets.toml: tools.t.module" in caught.value.hint
    assert set(registry.problems()) == {"toolsets.toml: tools.t.module"}


def test_a_configured_tool_that_nobody_registers_is_told() -> None:
    """A limit on a name that is misspelled would be no limit."""
    config = Config(tools={"raed_file": Tool(), "read_file": Tool(), "lost": Tool()})
    registry = load((module(), [entry("read_file")]), (module("b", hints=("lost",)), "it hung"), config=config)
    assert registry.problems() == {
        str(OURS / "b.py"): "it hung",
        "toolsets.toml: tools.raed_file": "there is no such tool: did you mean read_file?",
    }


def test_a_pin_is_not_met_by_a_bundled_file_of_that_name() -> None:
    registry = load((module("mine"), [entry()]), config=Config(tools={"t": Tool(module="user:mine")}))
    assert registry.tools() == []


# Names that are not there -----------------------------------------------------------------------------------------


def test_an_unknown_name_suggests_the_nearest() -> None:
    registry = load((module(), [entry("read_file"), entry("write_file")]))
    with pytest.raises(Unavailable, match="no tool 'raed_file'") as caught:
        registry.get("raed_file")
    assert "did you mean read_file" in caught.value.hint
    with pytest.raises(Unavailable) as caught:
        registry.get("zzz")
    assert "tools list" in caught.value.hint


def test_a_tool_whose_module_did_not_load_says_why() -> None:
    registry = load((module(hints=("lost",)), "it exited with code 3"))
    with pytest.raises(Unavailable, match="did not load: it exited with code 3") as caught:
        registry.get("lost")
    assert str(OURS / "m.py") in caught.value.hint
    assert registry.problems() == {str(OURS / "m.py"): "it exited with code 3"}


# Definitions ------------------------------------------------------------------------------------------------------


def test_definitions_are_in_order_and_in_one_shape() -> None:
    nested = {"type": "function", "function": SCHEMA}
    registry = load((module(), [entry("b"), entry("a", schema=nested)]))
    told = {"description": "What it does", "parameters": SCHEMA["parameters"]}
    assert registry.definitions(["b", "a"]) == [
        {"type": "function", "function": {"name": "a", **told}},
        {"type": "function", "function": {"name": "b", **told}},
    ]


def test_overrides_lie_over_the_top_level_and_never_change_the_name() -> None:
    registry = load((module(), [entry()]))
    (definition,) = registry.definitions(["t"], {"t": {"description": "Now \x1b[0m", "name": "other"}})
    assert definition["function"] == {"name": "t", "description": "Now [0m", "parameters": SCHEMA["parameters"]}
    (definition,) = registry.definitions(["t"], {"t": {"parameters": {"properties": {"b": "string"}}}})
    assert definition["function"]["parameters"]["properties"] == {"b": {"type": "string"}}


@pytest.mark.parametrize(
    "bad", [{"parameters": {"properties": {"a": {"type": "wrong"}}}}, {"parameters": {"$ref": "http://x"}}]
)
def test_overrides_that_are_not_sound_are_left_out(bad: dict[str, Any]) -> None:
    registry = load((module(), [entry()]))
    assert registry.definitions(["t"], {"t": bad}) == registry.definitions(["t"])


# The cache on disk ------------------------------------------------------------------------------------------------


def test_a_report_is_kept_by_content(tmp_path: Path) -> None:
    cache, report = DescribeCache(tmp_path), DescribeReport([entry()], seconds=0.5)
    assert cache.read(module()) is None
    cache.write(module(), report)
    assert DescribeCache(tmp_path).read(module()) == report
    assert cache.read(ModuleFile(folder=OURS, name="m", digest="1" * 64)) is None
    assert cache.read(ModuleFile(folder=OURS, name="n", digest="0" * 64)) is None


def test_a_failure_is_not_kept(tmp_path: Path) -> None:
    cache = DescribeCache(tmp_path)
    cache.write(module(), DescribeReport([], problem="the machine was busy"))
    assert cache.read(module()) is None


@pytest.mark.parametrize("damage", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"registrations": 5}'])
def test_a_damaged_file_counts_as_absent(tmp_path: Path, damage: bytes) -> None:
    cache = DescribeCache(tmp_path)
    cache.write(module(), DescribeReport([entry()]))
    (path,) = cache.folder.iterdir()
    path.write_bytes(damage)
    assert cache.read(module()) is None


def test_a_home_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    cache = DescribeCache(blocked)
    cache.write(module(), DescribeReport([entry()]))
    assert cache.read(module()) is None


def test_what_is_no_file_is_not_waited_for_and_what_is_too_large_not_read(tmp_path: Path) -> None:
    cache = DescribeCache(tmp_path)
    cache.write(module(), DescribeReport([entry()]))
    (path,) = cache.folder.iterdir()
    with path.open("ab") as file:
        file.truncate(MAX_CACHE + 1)  # blanks, as it happens, are no JSON either: what counts is that nobody reads them
    assert cache.read(module()) is None
    path.unlink()
    os.mkfifo(path)
    assert cache.read(module()) is None


def test_the_cache_does_not_grow_for_ever(tmp_path: Path) -> None:
    cache = DescribeCache(tmp_path)
    cache.folder.mkdir(parents=True)
    for number in range(MAX_CACHED):
        old = cache.folder / f"{number:032x}.json"
        old.touch()
        os.utime(old, (number, number))
    (cache.folder / "facts.json").touch()
    os.utime(cache.folder / "facts.json", (0, 0))
    cache.write(module(), DescribeReport([entry()]))
    assert len(list(cache.folder.iterdir())) == MAX_CACHED + 1
    assert not (cache.folder / f"{0:032x}.json").exists()
    assert cache.read(module()) is not None
    assert (cache.folder / "facts.json").exists()


def test_another_version_of_what_describes_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = DescribeCache(tmp_path)
    cache.write(module(), DescribeReport([entry()]))
    monkeypatch.setattr(wire, "VERSION", wire.VERSION + 1)
    assert DescribeCache(tmp_path).read(module()) is None
