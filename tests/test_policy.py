"""Keys, layers and ceilings: what a caller gets, and what is refused with which words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hermes_sandbox.errors import Refused
from hermes_sandbox.policy import (
    BUILT_IN_CEILING,
    OPTIONS,
    Layer,
    Policy,
    PolicyLayer,
    cannot,
    format_value,
    layer,
    resolve,
)


def of(**values: object) -> PolicyLayer:
    return layer(values, "test")


def test_the_tables_name_the_same_keys() -> None:
    fields = set(PolicyLayer.__struct_fields__)
    assert fields == set(OPTIONS)
    assert fields == set(Policy.__struct_fields__) - {"explicit", "sources", "ceilings"}
    assert set(BUILT_IN_CEILING) <= fields


@pytest.mark.parametrize(
    ("values", "message", "hint"),
    [
        ({"memroy": "1M"}, "test.memroy is no key", "did you mean memory?"),
        ({"zzz": 1}, "test.zzz is no key", "the keys are: timeout"),
        ({"memory": "1 furlong"}, "test.memory = '1 furlong'", "256M"),
        ({"timeout": "soon"}, "test.timeout = 'soon'", "90s"),
        ({"pids": -3}, "test.pids = -3", "above 0"),
        ({"network": "all"}, "test.network = 'all'", '"none", "host", or a list of hosts'),
        ({"network": ["host"]}, "test.network = ['host']", "write it alone"),
        ({"network": ["https://a.org/x"]}, "test.network", "write its name alone"),
        ({"cpus": "2 cores"}, "test.cpus = '2 cores'", "such as 2, 1.5 or 0.5"),
        ({"cpus": 0.01}, "test.cpus = 0.01", "the least is 0.1"),
        ({"disk": "10 gallons"}, "test.disk", '"2G"'),
        ({"hide": "/srv"}, "test.hide", "list of paths"),
        ({"python": "python3.12"}, "test.python = 'python3.12'", "absolute path of an interpreter"),
        ({"python": ["/usr/bin/python3"]}, "test.python", "absolute path of an interpreter"),
        ({"image": ""}, "test.image", "python:3.12-slim"),
        ({"image": "a b"}, "test.image = 'a b'", "python:3.12-slim"),
        ({"may_call": "read_file"}, "test.may_call", '["read_file", "web_search"]'),
        ({"may_call": ["no such name"]}, "test.may_call", '["read_file", "web_search"]'),
        ({"reuse": "always"}, "test.reuse", '"session" or "process" or "never"'),
        ({"tier": "vm"}, "test.tier", '"landlock"'),
        ({"runner": "../x"}, "test.runner", "such as local"),
        ({"env": "HOME"}, "test.env", "EXAMPLE_KEY"),
        ({"env": ["A=B"]}, "test.env", "EXAMPLE_KEY"),
        ({"read": "/srv"}, "test.read", "list of paths"),
        ({"write": [""]}, "test.write", "list of paths"),
        ({"write": ["~nobody_of_this_name/x"]}, "test.write", "begins with ~/"),
        ({"read": ["/a\0b"]}, "test.read", "is no path"),
        ({"packages": "mine"}, "test.packages", "list of paths"),
    ],
)
def test_a_wrong_key_or_value_names_its_path_and_what_to_write(
    values: dict[str, object], message: str, hint: str
) -> None:
    with pytest.raises(Refused) as caught:
        layer(values, "test")
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_paths_are_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert of(read=["~/data", "/srv/../etc"]).read == ("/home/somebody/data", "/etc")
    assert of(write=["x"]).write == (os.path.join(os.getcwd(), "x"),)
    assert of(packages="host").packages == ("host",)


def test_without_layers_the_defaults_hold_and_nothing_is_explicit() -> None:
    policy = resolve([])
    assert msgspec.structs.replace(policy, ceilings={}) == Policy()
    assert policy.ceilings["timeout"] == (3600.0, "built-in")
    assert policy.ceilings["memory"] == (64 << 30, "built-in")
    assert (policy.timeout, policy.memory, policy.network, policy.tier) == (120.0, 1 << 30, "none", "landlock")
    assert not policy.explicit


def test_the_strongest_layer_wins_and_is_named() -> None:
    policy = resolve(
        [
            Layer("defaults", of(timeout=50, pids=10), bounded=False),
            Layer("toolsets.x", of(timeout=60), of(timeout="2m"), bounded=False),
            Layer("call", of(timeout=90)),
        ]
    )
    assert (policy.timeout, policy.pids) == (90.0, 10)
    assert policy.sources == {"timeout": "call", "pids": "defaults"}
    assert policy.explicit == {"timeout", "pids"}


# Key -> the ceiling that a layer sets, a value that is within it, and one that is beyond.
CEILINGS: dict[str, tuple[Any, Any, Any]] = {
    "timeout": ("1m", 60, "61s"),
    "idle_timeout": (10, 2.5, 10.5),
    "grace": (2, "500ms", 3),
    "cpu_time": ("1h", 3600, 3601),
    "cpus": (1.5, 0.5, 2),
    "memory": ("2M", "2M", "3M"),
    "pids": (10, 10, 11),
    "file_size": ("1G", 1, "2G"),
    "disk": ("1G", "1G", "1025M"),
    "open_files": (64, 63, 65),
    "output": ("1M", "64K", "2M"),
    "result": ("1M", "1M", "1.5M"),
    "network": (["a.org", "*.b.org:443"], ["a.org:80", "x.b.org:443"], ["a.org", "x.b.org"]),
    "read": (["/srv"], ["/srv/a/b"], ["/srv/a", "/srv2"]),
    "write": (["/srv"], [], ["/srv/../etc"]),
    "env": (["KEY", "B"], ["KEY"], ["KEYS"]),
    "packages": ("host", "host", ["/x"]),
    "may_call": (["read_file", "patch"], ["patch"], ["patch", "terminal"]),
    "tier": ("landlock", "namespaces", "process"),
    "reuse": ("process", "never", "session"),
}
WITHIN = {"tier": "landlock or namespaces", "reuse": "process or never"}  # what to ask for, where it is no figure
FREE = {
    "hide": ["/srv"],
    "python": "/usr/bin/python3",
    "runner": "docker",
    "image": "python:3.12",
}


def test_every_key_has_a_rule() -> None:
    assert CEILINGS.keys() | FREE.keys() == OPTIONS.keys()
    assert FREE.keys() == {name for name, option in OPTIONS.items() if option.order == "free"}


@pytest.mark.parametrize("how", ["as a ceiling", "as a policy without a ceiling"])
@pytest.mark.parametrize("name", CEILINGS)
def test_a_call_never_goes_beyond_the_ceiling_of_any_key(name: str, how: str) -> None:
    most, tighter, looser = ({name: value} for value in CEILINGS[name])
    below = (PolicyLayer(), of(**most)) if how == "as a ceiling" else (of(**most),)
    layers = [Layer("toolsets.x", *below, bounded=False)]
    assert getattr(resolve([*layers, Layer("call", of(**tighter))]), name) == getattr(of(**tighter), name)
    with pytest.raises(Refused) as caught:
        resolve([*layers, Layer("call", of(**looser))])
    shown = [format_value(name, getattr(of(**each), name)) for each in (looser, most)]
    assert caught.value.message == f"{name} = {shown[0]} (call) is beyond the ceiling {shown[1]}, set by toolsets.x"
    within = WITHIN.get(name, f"no more than {shown[1]}")
    assert caught.value.hint == f"ask for {within}, or set toolsets.x.ceiling.{name} in your toolsets.toml"


@pytest.mark.parametrize("name", CEILINGS)
def test_nor_does_a_tools_ceiling_but_the_operator_may(name: str) -> None:
    most, tighter, looser = ({name: value} for value in CEILINGS[name])
    toolset = Layer("toolsets.x", PolicyLayer(), of(**most), bounded=False)
    with pytest.raises(Refused) as caught:
        resolve([toolset, Layer("tools.y", PolicyLayer(), of(**looser))])
    assert caught.value.message.startswith(f"ceiling.{name} = ")
    assert "(tools.y) is beyond the ceiling" in caught.value.message
    with pytest.raises(Refused, match=r"\(call\) is beyond the ceiling .* set by tools\.y"):
        resolve([toolset, Layer("tools.y", PolicyLayer(), of(**tighter)), Layer("call", of(**looser))])
    assert getattr(resolve([toolset, Layer("x", of(**looser), bounded=False)]), name) == getattr(of(**looser), name)


@pytest.mark.parametrize("name", FREE)
def test_what_has_no_order_is_the_callers_choice(name: str) -> None:
    chosen = of(**{name: FREE[name]})
    assert getattr(resolve([Layer("x"), Layer("call", chosen)]), name) == getattr(chosen, name)


@pytest.mark.parametrize(
    ("below", "ceiling", "asked", "allowed"),
    [
        ({"memory": "1M"}, {}, {"memory": 1 << 19}, True),
        ({"memory": "1M"}, {}, {"memory": (1 << 20) + 1}, False),
        ({"memory": "1M"}, {"memory": "2M"}, {"memory": "2M"}, True),
        ({}, {}, {"timeout": 3600}, True),
        ({}, {}, {"timeout": 3601}, False),  # the built-in ceiling
        ({}, {}, {"cpus": 64}, True),  # nobody limits it: any figure is less
        ({}, {}, {"disk": "1T"}, True),
        ({}, {}, {"network": "host"}, False),
        ({}, {}, {"network": ["a.org"]}, False),
        ({}, {"network": "host"}, {"network": "host"}, True),
        ({}, {"network": "host"}, {"network": ["a.org"]}, True),
        ({}, {"network": ["a.org"]}, {"network": "host"}, False),
        ({"network": "host"}, {}, {"network": "none"}, True),
        ({"network": ["a.org"]}, {}, {"network": []}, True),
        ({}, {}, {"env": ["KEY"]}, False),
        ({}, {}, {"may_call": ["patch"]}, False),
        ({}, {}, {"packages": ["/x"]}, False),
        ({}, {"packages": "host"}, {"packages": "host"}, True),
        ({}, {}, {"tier": "process"}, True),  # the operator's own command line, where no file says anything
        ({}, {}, {"tier": "namespaces"}, True),
        ({}, {}, {"reuse": "never"}, True),
        ({"tier": "namespaces"}, {}, {"tier": "landlock"}, False),
        ({"tier": "namespaces"}, {"tier": "process"}, {"tier": "process"}, True),
        ({"tier": "process"}, {}, {"tier": "namespaces"}, True),
        ({}, {"tier": "landlock"}, {"tier": "process"}, False),
        ({"reuse": "never"}, {}, {"reuse": "session"}, False),
        ({"reuse": "never"}, {"reuse": "session"}, {"reuse": "session"}, True),
    ],
)
def test_what_stands_where_nobody_says_otherwise(
    below: dict[str, object], ceiling: dict[str, object], asked: dict[str, object], allowed: bool
) -> None:
    layers = [Layer("toolsets.x", of(**below), of(**ceiling), bounded=False), Layer("call", of(**asked))]
    if allowed:
        (name,) = asked
        assert getattr(resolve(layers), name) == getattr(of(**asked), name)
    else:
        with pytest.raises(Refused, match=rf"{next(iter(asked))} = .* \(call\) is beyond the ceiling"):
            resolve(layers)


def test_hide_adds_up_and_nobody_takes_from_it() -> None:
    layers = [
        Layer("defaults", of(hide=["/srv/a"]), bounded=False),
        Layer("toolsets.x", of(memory="1M"), bounded=False),
        Layer("call", of(hide=["/srv/b", "/srv/a"])),
    ]
    policy = resolve(layers)
    assert policy.hide == ("/srv/a", "/srv/b")
    assert policy.sources["hide"] == "defaults, call"
    assert resolve([*layers[:2], Layer("call", of(hide=[]))]).hide == ("/srv/a",)


def test_a_ceiling_lowers_a_network_that_is_wider() -> None:
    def lowered(network: object, ceiling: object) -> object:
        below = Layer("defaults", of(network=network), bounded=False)
        return resolve([below, Layer("x", PolicyLayer(), of(network=ceiling), bounded=False)]).network

    assert lowered("host", ["a.org"]) == ("a.org",)
    assert lowered(["a.org:443", "b.org"], ["a.org"]) == ("a.org:443",)
    assert lowered(["b.org"], ["a.org"]) == "none"
    assert lowered(["a.org"], "none") == "none"
    assert lowered(["a.org"], "host") == ("a.org",)


def test_a_refusal_names_both_figures_and_who_set_the_ceiling() -> None:
    with pytest.raises(Refused) as caught:
        resolve([Layer("toolsets.x", PolicyLayer(), of(pids=10), bounded=False), Layer("call", of(pids=11))])
    for word in ("pids = 11", "(call)", "ceiling 10", "toolsets.x"):
        assert word in caught.value.message
    assert "ceiling.pids" in caught.value.hint


@pytest.mark.parametrize(
    ("set_by", "where"),
    [
        ("built-in", "set ceiling.memory of its toolset in your toolsets.toml"),
        ("defaults", "set ceiling.memory of its toolset in your toolsets.toml"),
        ("tools.y", "set tools.y.ceiling.memory in your toolsets.toml"),
        ("config.yaml: sandbox", "set sandbox.ceiling.memory in config.yaml"),
        ("config.yaml: tools.y", "set tools.y.ceiling.memory in config.yaml"),
        ("config.yaml: terminal", "set toolsets.terminal.ceiling.memory in config.yaml"),
        ("supervisor", "give the Supervisor a policy that allows it"),
    ],
)
def test_a_refusal_says_where_the_ceiling_can_be_moved(set_by: str, where: str) -> None:
    most = "64G" if set_by == "built-in" else "1G"
    below = [] if set_by == "built-in" else [Layer(set_by, of(memory="1G"), bounded=False)]
    with pytest.raises(Refused) as caught:
        resolve([*below, Layer("call", of(memory="65G"))])
    assert caught.value.hint == f"ask for no more than {most}, or {where}"


def test_whoever_set_the_ceiling_himself_is_not_sent_elsewhere() -> None:
    with pytest.raises(Refused) as caught:
        resolve([Layer("call", of(memory="2G"), of(memory="1G"))])
    assert caught.value.hint == "ask for no more than 1G"


def test_a_ceiling_strengthens_a_weaker_tier_below_it() -> None:
    below = Layer("defaults", of(tier="process"), bounded=False)
    strong = Layer("config.yaml: sandbox", PolicyLayer(), of(tier="namespaces", reuse="never"), bounded=False)
    policy = resolve([below, strong])
    assert (policy.tier, policy.reuse) == ("namespaces", "never")
    assert policy.sources["tier"] == "config.yaml: sandbox"


def test_the_supervisors_own_tier_is_the_operators() -> None:
    """Who makes the Supervisor, or a command, may go below what a file says; a call of its may not."""
    file = Layer("config.yaml: sandbox", of(tier="namespaces"), bounded=False)
    own = Layer("supervisor", of(tier="process"), bounded=False)
    assert resolve([file, own]).tier == "process"
    assert resolve([file, own, Layer("call", of(tier="process"))]).tier == "process"


def test_a_tool_is_bound_by_its_toolset_and_the_operator_by_nobody() -> None:
    toolset = Layer("toolsets.x", of(timeout=10), bounded=False)
    with pytest.raises(Refused, match=r"tools\.y"):
        resolve([toolset, Layer("tools.y", of(timeout=20))])
    assert resolve([toolset, Layer("supervisor", of(timeout=1e6), bounded=False)]).timeout == 1e6


def test_a_stronger_layers_policy_becomes_the_ceiling_of_those_above() -> None:
    layers = [Layer("toolsets.x", of(pids=10), of(pids=100), bounded=False), Layer("tools.y", of(pids=20))]
    with pytest.raises(Refused, match=r"ceiling 20, set by tools\.y"):
        resolve([*layers, Layer("call", of(pids=30))])


def test_a_ceiling_lowers_what_is_below_it(tmp_path: Path) -> None:
    ceiling = of(timeout=30, cpu_time=60, network="none", read=["/srv/a"], memory="4G")
    below = Layer("defaults", of(network="host", read=["/srv/a/b", "/srv/c"]), bounded=False)
    policy = resolve([below, Layer("toolsets.x", PolicyLayer(), ceiling, bounded=False)])
    assert (policy.timeout, policy.cpu_time) == (30.0, 60.0)  # of 120 s, and of no limit
    assert (policy.network, policy.read) == ("none", ("/srv/a/b",))
    assert policy.memory == 1 << 30  # it was below
    assert policy.sources["timeout"] == policy.sources["cpu_time"] == policy.sources["read"] == "toolsets.x"
    assert {"timeout", "cpu_time", "network", "read"} <= policy.explicit


def test_a_tools_ceiling_stays_below_its_toolsets() -> None:
    toolset = Layer("toolsets.x", of(memory="1G"), of(memory="4G"), bounded=False)
    with pytest.raises(
        Refused, match=r"ceiling\.memory = 64G \(tools\.y\) is beyond the ceiling 4G, set by toolsets\.x"
    ):
        resolve([toolset, Layer("tools.y", PolicyLayer(), of(memory="64G"))])
    assert resolve([toolset, Layer("tools.y", PolicyLayer(), of(memory="2G")), Layer("call", of(memory="2G"))]).memory


@pytest.mark.parametrize("bounded", [True, False])
def test_a_layer_above_its_own_ceiling_contradicts_itself(bounded: bool) -> None:
    with pytest.raises(Refused, match=r"timeout = 60s \(x\) is beyond the ceiling 30s, set by x"):
        resolve([Layer("x", of(timeout=60), of(timeout=30), bounded=bounded)])


def test_figures_that_look_alike_are_told_apart() -> None:
    with pytest.raises(Refused, match=r"memory = 1073741825 \(call\) is beyond the ceiling 1073741824"):
        resolve([Layer("x", of(memory="1G"), bounded=False), Layer("call", of(memory=(1 << 30) + 1))])


def test_a_link_out_of_a_granted_folder_is_not_granted(tmp_path: Path) -> None:
    """A tool may have made it, in the hope that a later call is asked to open what it leads to."""
    granted, outside = tmp_path / "granted", tmp_path / "outside"
    granted.mkdir()
    outside.mkdir()
    (granted / "in").mkdir()
    (granted / "out").symlink_to(outside)
    (tmp_path / "other_name").symlink_to(granted)
    below = Layer("x", of(write=[str(granted)]), bounded=False)
    with pytest.raises(Refused, match="write"):
        resolve([below, Layer("call", of(write=[str(granted / "out")]))])
    inside = [str(granted / "in"), str(tmp_path / "other_name" / "in")]
    assert resolve([below, Layer("call", of(write=inside))]).write == tuple(inside)


def test_a_layer_made_in_python_is_checked_too() -> None:
    written: dict[str, Any] = {"memory": "256M", "timeout": "5s", "read": ["~/x"], "packages": ["host"]}
    layered = PolicyLayer(**written)
    assert (layered.memory, layered.timeout, layered.packages) == (256 << 20, 5.0, ("host",))
    assert layered == of(**written)
    with pytest.raises(Refused, match=r"policy\.pids = -1 cannot be used"):
        PolicyLayer(pids=-1)


def test_a_refusal_does_not_repeat_all_that_came() -> None:
    with pytest.raises(Refused) as caught:
        of(memory="9" * 1_000_000)
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("memory", 256 << 20, "256M"),
        ("memory", 1000, "1000"),
        ("memory", None, "no limit"),
        ("timeout", 90.0, "90s"),
        ("timeout", 0.25, "0.25s"),
        ("pids", 256, "256"),
        ("env", (), "nothing"),
        ("read", ("/a", "/b"), "/a, /b"),
        ("network", "none", "none"),
        ("network", ("a.org:443", "*.b.org"), "a.org:443, *.b.org"),
        ("cpus", 1.5, "1.5"),
        ("cpus", 2.0, "2"),
        ("cpus", None, "no limit"),
        ("disk", 10 << 30, "10G"),
        ("image", "", "not set"),
        ("python", "/usr/bin/python3", "/usr/bin/python3"),
    ],
)
def test_values_are_shown_with_their_unit(name: str, value: object, text: str) -> None:
    assert format_value(name, value) == text


@pytest.mark.parametrize("name", ["memory", "file_size", "timeout", "grace", "pids"])
def test_what_is_shown_can_be_written(name: str) -> None:
    value = getattr(Policy(), name)
    assert OPTIONS[name].parse(format_value(name, value)) == value


def test_what_a_runner_cannot_do_is_refused_with_its_value_and_who_set_it() -> None:
    policy = resolve([Layer("toolsets.x", of(disk="2G"), bounded=False)])
    refusal = cannot(policy, "disk", "there is no quota", "use file_size")
    assert (refusal.message, refusal.hint) == (
        "disk = 2G (toolsets.x) cannot be had: there is no quota",
        "use file_size",
    )


@pytest.mark.parametrize("value", [{"API_KEY": "sk-secret"}, ["API_KEY=sk-secret"], "API_KEY=sk-secret"])
def test_no_refusal_shows_the_value_of_a_variable(value: object) -> None:
    with pytest.raises(Refused) as caught:
        PolicyLayer(env=value)  # type: ignore[arg-type]
    assert "secret" not in caught.value.message + caught.value.hint
