"""Names of toolsets to names of tools."""

from __future__ import annotations

import pytest

from hermes_sandbox.config import Config, Toolset
from hermes_sandbox.discovery import ModuleFile
from hermes_sandbox.errors import Unavailable
from hermes_sandbox.registry import DescribeReport, Registry
from hermes_sandbox.toolsets import names, resolve

TOOLS = {"read": "file", "write": "file", "get": "web", "find": "web", "lone": "other"}


@pytest.fixture
def config() -> Config:
    return Config(
        core=("read", "get", "not_installed"),
        toolsets={
            "file": Toolset(tools=("read", "write"), aliases=("file_tools", "files")),
            "web": Toolset(tools=("get",)),
            "both": Toolset(includes=("file", "web")),
            "more": Toolset(includes=("both", "file_tools"), tools=("lone", "not_installed")),
            "round": Toolset(includes=("trip",), tools=("read",)),
            "trip": Toolset(includes=("round",), tools=("get",)),
            "self": Toolset(includes=("self",), tools=("lone",)),
            "bad": Toolset(includes=("fiel",)),
            "empty": Toolset(),
        },
    )


@pytest.fixture
def registry(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Registry:
    module = ModuleFile(folder=tmp_path_factory.mktemp("tools"), name="m")
    raw = [{"name": name, "toolset": toolset, "schema": {}} for name, toolset in TOOLS.items()]
    found = Registry(config)
    found.load([module], {module.key: DescribeReport(registrations=raw)})
    return found


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (["file"], {"read", "write"}),
        (["files"], {"read", "write"}),
        (["web"], {"get", "find"}),  # a tool registered under it counts as listed
        (["other"], {"lone"}),  # a toolset that only a tool names
        (["both"], {"read", "write", "get", "find"}),
        (["more"], set(TOOLS)),  # a diamond, and an include by alias
        (["round"], {"read", "get"}),  # a cycle
        (["trip"], {"read", "get"}),
        (["self"], {"lone"}),
        (["core"], {"read", "get"}),
        (["all"], set(TOOLS)),
        (["*"], set(TOOLS)),
        (["lone"], {"lone"}),
        ([" file ", "lone"], {"read", "write", "lone"}),
        (["empty"], set()),
        ([], set()),
    ],
)
def test_resolution(config: Config, registry: Registry, wanted: list[str], found: set[str]) -> None:
    assert resolve(wanted, config, registry) == found


@pytest.mark.parametrize(
    ("name", "near"), [("fiel", "file"), ("fil_tools", "file_tools"), ("rad", "read"), ("al", "all")]
)
def test_an_unknown_name_suggests_the_nearest(config: Config, registry: Registry, name: str, near: str) -> None:
    with pytest.raises(Unavailable) as caught:
        resolve([name], config, registry)
    assert repr(name) in caught.value.message
    assert caught.value.hint == f"did you mean {near}?"


def test_an_unknown_name_far_from_all_lists_them(config: Config, registry: Registry) -> None:
    with pytest.raises(Unavailable) as caught:
        resolve(["qqqqqq"], config, registry)
    assert "both" in caught.value.hint


def test_no_tool_file_takes_over_a_configured_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    """By registering a toolset, or a tool, under an alias or a toolset's name; nor does an alias hide a toolset."""
    config = Config(toolsets={"web": Toolset(tools=("get",), aliases=("web_tools", "file")), "file": Toolset()})
    module = ModuleFile(folder=tmp_path_factory.mktemp("tools"), name="m")
    pairs = {"get": "web", "evil": "web_tools", "web_tools": "x", "read": "file"}
    raw = [{"name": name, "toolset": toolset, "schema": {}} for name, toolset in pairs.items()]
    registry = Registry(config)
    registry.load([module], {module.key: DescribeReport(registrations=raw)})
    assert resolve(["web_tools"], config, registry) == {"get"}
    assert resolve(["file"], config, registry) == {"read"}


def test_an_unknown_include_is_an_error_too(config: Config, registry: Registry) -> None:
    with pytest.raises(Unavailable, match="'fiel'"):
        resolve(["bad"], config, registry)


def test_names_are_those_configured_and_those_registered(config: Config, registry: Registry) -> None:
    assert names(config, registry) == sorted({*config.toolsets, "other"})
