"""Names that something is granted to, and modules that would speak for others."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from hermes_sandbox.config import Config, Tool, Toolset
from hermes_sandbox.discovery import ModuleFile
from hermes_sandbox.errors import Unavailable
from hermes_sandbox.policy import PolicyLayer
from hermes_sandbox.registry import FAILURE_HOLDS, DescribeCache, DescribeReport
from hermes_sandbox.schemas import parameters_of
from tests.test_registry import OURS, USERS, entry, load, module

LISTED = Config(toolsets={"s": Toolset(tools=("t",), policy=PolicyLayer(env=("KEY",)))})
OWN = Config(tools={"t": Tool(policy=PolicyLayer(env=("KEY",)))})


@pytest.mark.parametrize("config", [LISTED, OWN], ids=["listed", "own"])
@pytest.mark.parametrize("more", [{}, {"override": True}, {"toolset": "other", "override": True}])
@pytest.mark.parametrize("evil", ["a_evil", "z_evil"])
def test_a_granted_name_that_two_files_want_is_nobodys(config: Config, more: dict[str, Any], evil: str) -> None:
    modules = [(module("m", USERS), [entry()]), (module(evil, USERS), [entry(**more)])]
    registry = load(*sorted(modules, key=lambda each: each[0].name), config=config)
    assert registry.tools() == []
    assert len(registry.problems()) == 2
    with pytest.raises(Unavailable, match="2 files want the name"):
        registry.get("t")


def test_a_file_that_did_not_load_leaves_its_granted_name_to_nobody() -> None:
    registry = load(
        (module("m", USERS, hints=("t",)), "its import took too long"), (module("z", USERS), [entry()]), config=OWN
    )
    assert registry.tools() == []


def test_a_bundled_file_keeps_its_granted_name_even_if_it_did_not_load() -> None:
    registry = load((module("m", OURS, hints=("t",)), "broken"), (module("z", USERS), [entry()]), config=OWN)
    assert registry.tools() == []
    assert "taken by" in registry.problems()[f"{USERS / 'z.py'}: t"]


def test_one_file_may_replace_its_own() -> None:
    registry = load((module("m", USERS), [entry(), entry(description="later")]), config=OWN)
    assert registry.get("t").description == "later"


def test_whatever_is_wrong_with_a_registration_is_its_own_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(schema: Any) -> Any:
        if "odd" in schema:
            raise TypeError("a defect of ours")
        return parameters_of(schema)

    monkeypatch.setattr("hermes_sandbox.registry.parameters_of", fail)
    registry = load((module(), [entry("bad", schema={"odd": 1}), entry("good")]))
    assert [tool.name for tool in registry.tools()] == ["good"]


def test_the_same_text_in_another_folder_has_a_report_of_its_own(tmp_path: Path) -> None:
    cache = DescribeCache(tmp_path)
    cache.write(module("m", USERS), DescribeReport([entry()]))
    assert cache.read(module("m", OURS)) is None
    odd = ModuleFile(folder=Path("/\udcff"), name="m", digest="0")
    cache.write(odd, DescribeReport([]))
    assert cache.read(odd) == DescribeReport([])
    cache.write(odd, DescribeReport([], problem="\udcff", seconds=9))


def test_a_failure_that_took_long_holds_for_an_hour(tmp_path: Path) -> None:
    cache = DescribeCache(tmp_path)
    cache.write(module(), DescribeReport([], problem="quick", seconds=0.1))
    assert cache.read(module()) is None
    cache.write(module(), DescribeReport([], problem="slow", seconds=10))
    assert cache.read(module()) == DescribeReport([], problem="slow", seconds=10)
    (path,) = cache.folder.iterdir()
    os.utime(path, (time.time(), time.time() - FAILURE_HOLDS - 1))
    assert cache.read(module()) is None


def test_a_toolset_and_a_core_tool_that_are_nothings_are_told() -> None:
    """A limit on a name that is misspelled would be no limit."""
    config = Config(core=("t", "left_out", "tt"), toolsets={"terminl": Toolset(), "ours": Toolset(tools=("left_out",))})
    registry = load((module(), [entry("t", "terminal")]), config=config)
    told = registry.problems()
    assert told["toolsets.toml: toolsets.terminl"] == "there is no such toolset: did you mean terminal?"
    assert told["toolsets.toml: core: tt"].startswith("there is no such tool")
    assert "toolsets.toml: core: left_out" not in told


@pytest.mark.parametrize(
    ("kind", "named", "good"),
    [
        ("number", "a", True),
        ("integer", "a", True),
        (["integer", "null"], "a", True),
        ("string", "a", False),
        ("number", "b", False),
    ],
)
def test_an_argument_for_time_is_a_number_of_the_schema(kind: object, named: str, good: bool) -> None:
    schema = {"parameters": {"type": "object", "properties": {"a": {"type": kind}}}}
    config = Config(tools={"t": Tool(timeout_argument=named)})
    registry = load((module(), [entry(schema=schema)]), config=config)
    assert [tool.name for tool in registry.tools()] == ["t"] * good
    if not good:
        with pytest.raises(Unavailable, match=f"no argument {named} that is a number") as caught:
            registry.get("t")
        assert "toolsets.toml: tools.t.timeout_argument" in caught.value.hint


def test_names_in_toolsets_toml_that_are_nothings_are_told() -> None:
    config = Config(
        toolsets={
            "s": Toolset(tools=("t", "tt"), includes=("b", "bee", "zzz"), aliases=("b", "short", "bee")),
            "b": Toolset(aliases=("short",), includes=("s", "own")),
        }
    )
    registry = load((module(), [entry("t"), entry("o", "own")]), config=config)
    assert registry.problems() == {
        "toolsets.toml: toolsets.s.tools: tt": "there is no such tool: did you mean t?",
        "toolsets.toml: toolsets.s.includes: zzz": "there is no such toolset",
        "toolsets.toml: toolsets.s.aliases: b": "the name is taken by toolset b",
        "toolsets.toml: toolsets.b.aliases: short": "the name is taken by toolset s",
    }
