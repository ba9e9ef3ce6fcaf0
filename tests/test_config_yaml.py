"""config.yaml: what it may say, how it stands over toolsets.toml, and what of Hermes' own is understood."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hermes_sandbox import toolsets_file
from hermes_sandbox.config import Config, load
from hermes_sandbox.config_checks import TOOL as CHECKED
from hermes_sandbox.errors import Refused
from hermes_sandbox.hermes_config import FILE, SECTIONS
from hermes_sandbox.hermes_terminal import WITHOUT_EFFECT
from hermes_sandbox.policy import OPTIONS, Layer, Policy, PolicyLayer, resolve

TOML = """
[toolsets.web]
tools = ["search"]
[toolsets.web.policy]
timeout = 10
env = ["ONE"]
[toolsets.web.ceiling]
timeout = 20
[toolsets.terminal]
tools = ["terminal", "process"]
[toolsets.terminal.policy]
timeout = 100
[toolsets.terminal.ceiling]
timeout = "1h"
[toolsets.file]
tools = ["read_file"]
[toolsets.file.policy]
memory = "512M"
"""


def made(home: Path, text: str, toml: str = TOML) -> Config:
    (home / FILE).write_text(text, encoding="utf-8")
    (home / toolsets_file.FILE).write_text(toml, encoding="utf-8")
    return load(home)


def policy(config: Config, toolset: str, tool: str) -> Policy:
    return resolve(config.layers(toolset, tool))


def refused(home: Path, text: str) -> Refused:
    with pytest.raises(Refused) as caught:
        made(home, text)
    return caught.value


# Layers -----------------------------------------------------------------------------------------------------------


def test_it_is_stronger_than_toolsets_toml_and_moves_both_figures(tmp_path: Path) -> None:
    text = """
    sandbox: {policy: {pids: 7, timeout: 11}}
    toolsets: {web: {policy: {timeout: 12, memory: 64M}, ceiling: {timeout: 5m}}}
    tools: {search: {policy: {memory: 128M}}}
    """
    config = made(tmp_path, text)
    sources = [each.source for each in config.layers("web", "search")]
    assert sources == [
        *("defaults", "toolsets.web", "tools.search"),
        *("config.yaml: sandbox", "config.yaml: toolsets.web", "config.yaml: tools.search"),
    ]
    found = policy(config, "web", "search")
    assert (found.pids, found.timeout, found.memory, found.env) == (7, 12.0, 128 << 20, ("ONE",))
    assert found.sources["pids"] == "config.yaml: sandbox"
    assert found.sources["memory"] == "config.yaml: tools.search"
    assert found.sources["env"] == "toolsets.web"
    assert policy(config, "other", "other").pids == 7
    assert resolve(config.layers()).timeout == 11.0


def test_what_is_said_of_a_toolset_is_for_those_that_toolsets_toml_lists(tmp_path: Path) -> None:
    config = made(tmp_path, "toolsets: {web: {policy: {env: [KEY]}}, open: {policy: {env: [KEY]}}}")
    assert policy(config, "web", "search").env == ("KEY",)
    assert policy(config, "web", "liar").env == ()
    assert policy(config, "open", "anybody").env == ("KEY",)  # no file says who is in it
    assert config.grants("search")
    assert not config.grants("liar")


def test_what_is_said_of_a_tool_besides_its_policy_is_merged(tmp_path: Path) -> None:
    toml = '[tools.a]\nmodule = "user:x"\ngroup = "g"\ntimeout_argument = "seconds"\n'
    config = made(tmp_path, "tools: {a: {group: h, children: keep}, b: {module: 'user:y'}}", toml)
    a, b = config.tools["a"], config.tools["b"]
    assert (a.module, a.group, a.children, a.timeout_argument) == ("user:x", "h", "keep", "seconds")
    assert (b.module, b.children, b.timeout_argument) == ("user:y", "kill", "")
    assert config.grants("b")


def test_paths_that_it_grants_for_writing_are_known(tmp_path: Path) -> None:
    text = "sandbox: {policy: {write: [/srv/a]}, ceiling: {write: [/srv]}}\ntools: {x: {policy: {write: [/srv/b]}}}"
    assert {Path("/srv/a"), Path("/srv"), Path("/srv/b")} <= set(made(tmp_path, text).writable())


def test_lists_of_toolsets_and_names_that_are_off(tmp_path: Path) -> None:
    config = made(tmp_path, "toolsets: [hermes-cli, web]\ntools: {disabled: [search, terminal]}\n")
    assert config.chosen == ("hermes-cli", "web")
    assert config.disabled == {"search", "terminal"}
    assert config.switched_off("search", "elsewhere") == "search"
    assert config.switched_off("process", "elsewhere") == "terminal"  # the toolset lists it, whatever its file says
    assert config.switched_off("read_file", "file") == ""
    assert made(tmp_path, "").chosen is None


def test_what_is_hermes_own_is_collected_and_what_comes_later_is_let_be(tmp_path: Path) -> None:
    text = """
    model: {default: x}
    display: {}
    mcp_servers: {one: {command: x, whatever: [1]}}
    mcp:
    delegation: {max_spawn_depth: 1}
    runners: {local: {}}
    tools: {tool_search: {enabled: auto}}
    """
    config = made(tmp_path, text)
    assert config.foreign == ("model", "display")
    assert "tools.tool_search" in config.without_effect
    assert "tool_search" not in config.tools


def test_a_home_without_one_and_an_empty_one_say_nothing(tmp_path: Path) -> None:
    empty = made(tmp_path, "# nothing\n")
    (tmp_path / FILE).unlink()
    assert load(tmp_path).operator == empty.operator
    assert "config.yaml" not in str([each.source for each in empty.layers("terminal", "terminal")])


def test_without_one_yaml_is_not_imported(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from hermes_sandbox import config; "
        "config.load(Path(sys.argv[1])); print('yaml' in sys.modules)"
    )

    def ran() -> str:
        words = [sys.executable, "-c", program, str(tmp_path)]
        return subprocess.run(words, capture_output=True, check=True, encoding="utf-8").stdout.strip()

    assert ran() == "False"
    (tmp_path / FILE).write_text("toolsets: [web]\n", encoding="utf-8")
    assert ran() == "True"


# Hermes' own section ----------------------------------------------------------------------------------------------


def test_where_commands_run_holds_for_files_too_and_their_time_and_environment_do_not(tmp_path: Path) -> None:
    config = made(tmp_path, "terminal: {backend: ssh, timeout: 90, env_passthrough: [TOKEN, HOME_TOWN]}")
    terminal, files = policy(config, "terminal", "process"), policy(config, "file", "read_file")
    assert (terminal.runner, terminal.timeout, terminal.env) == ("ssh", 90.0, ("TOKEN", "HOME_TOWN"))
    assert (files.runner, files.timeout, files.env) == ("ssh", 60.0, ())
    assert terminal.sources["runner"] == "config.yaml: terminal"
    assert policy(config, "web", "search").runner == "local"
    assert policy(config, "terminal", "liar").env == ()


@pytest.mark.parametrize(
    ("asked", "sandbox", "most"),
    [
        (180, "", 3600.0),
        (7200, "", 7200.0),
        (180, "sandbox: {ceiling: {timeout: 5m}}", 300.0),
        (400, "sandbox: {ceiling: {timeout: 5m}}", 400.0),
        (180, "sandbox: {policy: {timeout: 20}}", 180.0),
    ],
)
def test_its_timeout_is_a_default_and_says_nothing_of_the_most(
    tmp_path: Path, asked: int, sandbox: str, most: float
) -> None:
    layers = made(tmp_path, f"terminal: {{timeout: {asked}}}\n{sandbox}\n").layers("terminal", "terminal")
    assert resolve(layers).timeout == asked
    resolve([*layers, Layer("call", PolicyLayer(timeout=most))])
    with pytest.raises(Refused, match="beyond the ceiling"):
        resolve([*layers, Layer("call", PolicyLayer(timeout=most + 1))])


def test_a_containers_limits_and_mounts(tmp_path: Path) -> None:
    text = """
    terminal:
      backend: docker
      docker_image: python:3.12
      modal_image: other
      container_cpu: 1.5
      container_memory: 5120
      container_disk: 100
      docker_network: false
      docker_forward_env: [ONE, TWO]
      env_passthrough: [TWO, THREE]
      docker_volumes: ["/srv/in:/srv/in:ro", "/srv/out:/srv/out", "/srv/more:/srv/more:rw"]
    """
    config = made(tmp_path, text)
    for toolset, tool in (("terminal", "terminal"), ("file", "read_file")):
        found = policy(config, toolset, tool)
        assert (found.runner, found.image, found.network) == ("docker", "python:3.12", "none")
        assert (found.cpus, found.memory, found.disk) == (1.5, 5120 << 20, 100 << 20)
        assert (found.read, found.write) == (("/srv/in",), ("/srv/out", "/srv/more"))
    assert policy(config, "terminal", "terminal").env == ("TWO", "THREE", "ONE")
    assert config.without_effect == {"terminal.modal_image": "the backend is docker"}


def test_keys_of_another_backend_have_no_effect_and_are_named(tmp_path: Path) -> None:
    text = """
    terminal:
      backend: local
      docker_image: x
      container_memory: 5120
      docker_network: false
      docker_volumes: ["/a:/b"]
      docker_forward_env: [ONE]
      lifetime_seconds: 300
      ssh_host: null
      ssh_user: ""
      docker_env: {}
      docker_extra_args: []
    """
    config = made(tmp_path, text)
    found = policy(config, "terminal", "terminal")
    assert found.sources.keys().isdisjoint({"image", "network", "write", "env"})
    assert found.sources["memory"] == "toolsets.terminal"
    named = {key.removeprefix("terminal.") for key in config.without_effect}
    assert named == {
        *("docker_image", "container_memory", "docker_network", "docker_volumes", "docker_forward_env"),
        "lifetime_seconds",
    }
    assert all(config.without_effect.values())


def test_every_key_of_hermes_is_known(tmp_path: Path) -> None:
    config = made(tmp_path, "terminal:\n" + "".join(f"  {key}: x\n" for key in WITHOUT_EFFECT))
    assert config.without_effect.keys() == {f"terminal.{key}" for key in WITHOUT_EFFECT}


@pytest.mark.parametrize(
    ("key", "word"), [("container_cpu: 0", "no limit"), ("docker_network: true", "only a policy grants")]
)
def test_what_would_loosen_is_not_taken_from_there(tmp_path: Path, key: str, word: str) -> None:
    config = made(tmp_path, f"terminal: {{backend: docker, {key}}}")
    assert word in config.without_effect[f"terminal.{key.partition(':')[0]}"]
    assert policy(config, "terminal", "terminal").network == "none"


@pytest.mark.parametrize(
    ("said", "cwd"), [(".", ""), ("auto", ""), ("/srv/work", "/srv/work"), ("~/work", "~/work"), ("~", "~")]
)
def test_the_folder_to_work_in(tmp_path: Path, said: str, cwd: str) -> None:
    assert made(tmp_path, f"terminal: {{cwd: '{said}'}}").cwd == cwd


def test_a_folder_of_another_machine_is_not_ours_to_choose(tmp_path: Path) -> None:
    config = made(tmp_path, "terminal: {backend: ssh, cwd: /root}")
    assert config.cwd == ""
    assert config.without_effect == {"terminal.cwd": "the backend is ssh"}


def test_its_environment_variables_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERMINAL_ENV", "docker")
    monkeypatch.setenv("TERMINAL_TIMEOUT", "5")
    found = policy(made(tmp_path, ""), "terminal", "terminal")
    assert (found.runner, found.timeout) == ("local", 100.0)


# What is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "hint"),
    [
        ("terminal: {tmeout: 5}", "terminal.tmeout", "did you mean timeout?"),
        ("terminal: {docker_netwrok: false}", "terminal.docker_netwrok", "did you mean docker_network?"),
        ("sandbox: {tools: {x: {}}}", "sandbox.tools: unknown key", "a section of its own"),
        ("sandbox: {polcy: {}}", "sandbox.polcy", "did you mean policy?"),
        ("sandbox: {policy: {memry: 5}}", "sandbox.policy.memry", "did you mean memory?"),
        ("sandbox: {policy: {memory: lots}}", "sandbox.policy.memory = 'lots'", "256M"),
        ("toolsets: {web: {tools: [a]}}", "toolsets.web.tools", "the keys are: policy, ceiling"),
        ("toolsets: {web: {policy: {timeout: 1:30}}}", "toolsets.web.policy.timeout = '1:30'", "90s"),
        ("toolsets: {web: {policy: {timeout: }}}", "toolsets.web.policy.timeout = None", "90s"),
        ("toolsets: {web: {policy: {network: no}}}", "toolsets.web.policy.network = False", "put words in quotes"),
        ("toolsets: {web: {policy: {network: off}}}", "toolsets.web.policy.network = False", "none"),
        ("toolsets: {file_tools: {}}", "toolsets.file_tools is another name of file", "write toolsets.file"),
        ("tools: {x: {policy: {env: [NO]}}}", "tools.x.policy.env", "put words in quotes"),
        ("tools: {x: {policy: {read: [data]}}}", "tools.x.policy.read holds the relative path 'data'", "~/"),
        ("tools: {x: {ceiling: {image: a}}}", "tools.x.ceiling.image", "policy"),
        ("tools: {x: {children: stay}}", "tools.x.children", "keep"),
        ("tools: {x: {children: [keep]}}", "tools.x.children", "keep"),
        ("tools: {x: {timeout_argument: 5}}", "tools.x.timeout_argument", "quotes"),
        ("tools: {x: 5}", "tools.x is no table", "write x: and its keys below"),
        ("tools: {disabled: search}", "tools.disabled is no list", "write a list"),
        ("toolsets: [web, 5]", "toolsets is no list", "write a list"),
        ("runners: {local: {shell: zsh}}", "runners.local.shell", "remove it"),
        ("terminal: 5", "terminal is no table", "write terminal:"),
        ("mcp_servers: [a]", "mcp_servers is no table", "mcp_servers:"),
        ("tools: {1: {}}", "tools: the key 1 is no text", "quotes"),
        ("tools: {no: {}}", "tools: the key False is no text", "quotes"),
        ("terminal: {backend: 5}", "terminal.backend", "name of a runner"),
        ("terminal: {backend: The Docker}", "terminal.backend = 'The Docker'", "name of a runner"),
        ("terminal: {timeout: 1:30}", "terminal.timeout = '1:30'", "90s"),
        ("terminal: {env_passthrough: TOKEN}", "terminal.env_passthrough is no list of names", "write a list"),
        ("terminal: {env_passthrough: [A=b]}", "terminal.env_passthrough", "write a list of names"),
        ("terminal: {cwd: here}", "terminal.cwd is the relative path 'here'", "~/"),
        ("terminal: {backend: docker, container_memory: 5G}", "terminal.container_memory = '5G'", "5120"),
        ("terminal: {backend: docker, container_cpu: yes}", "terminal.container_cpu = True", "0.5"),
        ("terminal: {backend: docker, container_memory: -1}", "terminal.container_memory = -1", "5120"),
        ("terminal: {backend: docker, docker_image: 'a b'}", "terminal.docker_image = 'a b'", "name of an image"),
        ("terminal: {backend: docker, docker_network: none}", "terminal.docker_network", "true or false"),
        ("terminal: {backend: docker, docker_volumes: ['/a:/b']}", "docker_volumes[0]", "same path"),
        ("terminal: {backend: docker, docker_volumes: ['cache:/b']}", "docker_volumes[0]", "same path"),
        ("terminal: {backend: docker, docker_volumes: ['/a:/a:z']}", "docker_volumes[0]", "same path"),
        ("- a\n- b\n", "is no table of sections", "their keys below"),
        ("just words", "is no table of sections", "their keys below"),
        ("a: 1\nb: ]\n", "line 2", "mend the file"),
        ("? [a]\n: 1\n", "line 1: found unhashable key", "mend the file"),
        ("terminal:\n  timeout: 5\n  timeout: 6\n", "terminal.timeout is written twice, in lines 2 and 3", "mend"),
        ("{a: 1, a: 2}", "a is written twice, in lines 1 and 1", "mend"),
        ("model: [{k: {x: 1, 'x': 2}}]", "model[0].k.x is written twice", "mend"),
        ("a: !!python/object/apply:os.system [true]", "line 1", "mend"),
        ("a: *nowhere", "line 1", "mend"),
        ("a: 2024-13-45", "a date", "mend"),
        ("a: \x07", "characters", "mend"),
        ("a: 1\n---\nb: 2\n", "line 2", "mend"),
        ("a: " + "[" * 100_000, "", "mend"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(tmp_path: Path, text: str, path: str, hint: str) -> None:
    error = refused(tmp_path, text)
    assert FILE in error.message
    assert path in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    "text",
    [
        "'hunter2\n",
        "hunter2: [\n",
        "\x07hunter2\n",
        "*hunter2",
        "!hunter2 x",
        "%hunter2",
        "{hunter2",
        "!!int hunter2",
        "!!bool hunter2",
        "!!timestamp hunter2",
        "!!float hunter2",
    ],
)
def test_no_error_shows_what_a_line_says(tmp_path: Path, text: str) -> None:
    error = refused(tmp_path, f"api_key: {text}")
    assert "hunter2" not in error.message + error.hint


WORDS = st.sampled_from(
    [*SECTIONS, *OPTIONS, *WITHOUT_EFFECT, *CHECKED, "web", "search", "docker", "none", "5s", "", "~", "/x"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 1 << 70) | st.floats() | WORDS | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*SECTIONS, "mcp"]), VALUES, min_size=1))
def test_whatever_it_says_is_taken_or_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, said: dict[str, Any]
) -> None:
    home = tmp_path_factory.mktemp("home")
    try:
        config = made(home, yaml.safe_dump(said, allow_unicode=True))
        for toolset, tool in (("web", "search"), ("terminal", "terminal"), ("", "")):
            config.layers(toolset, tool)
        config.writable()
        return
    except Refused as refusal:
        told = refusal
    assert f"{FILE}: " in told.message
    assert told.hint


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"a: \xff\n")
    with pytest.raises(Refused, match="no UTF-8 text"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("written", "read"),
    [("010", 10.0), ("1.5", 1.5), ("2", 2.0), ("'90s'", 90.0), ("1e1", None), ("0x10", None), ("+5", 5.0), ("5.", 5.0)],
)
def test_numbers_are_decimal(tmp_path: Path, written: str, read: Any) -> None:
    text = f"sandbox: {{policy: {{timeout: {written}}}}}"
    if read is None:
        assert "90s" in refused(tmp_path, text).hint
    else:
        assert resolve(made(tmp_path, text).layers()).timeout == read


def test_a_key_of_a_merge_may_be_written_again(tmp_path: Path) -> None:
    text = """
    base: &base {timeout: 5, pids: 6}
    sandbox: {policy: {<<: *base, timeout: 7}}
    """
    found = resolve(made(tmp_path, text).layers())
    assert (found.timeout, found.pids) == (7.0, 6)
