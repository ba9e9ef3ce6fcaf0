"""Hermes' own `terminal:` section of config.yaml, in terms of our policy.

Where commands run (`backend`) holds in Hermes for the terminal, the file tools and code alike, so the keys that come
with it become a layer of each of these toolsets; a command's time and its environment are the terminal's alone. Keys
that Hermes knows and that mean nothing here are not refused, since its own set-up writes most of them: they are kept
with the reason, for `doctor` to name. What Hermes reads from TERMINAL_* variables is not read: they would loosen a
policy without being seen in any file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from hermes_sandbox import config_checks as checks
from hermes_sandbox.errors import Refused
from hermes_sandbox.policy import Layer, PolicyLayer

SOURCE = "config.yaml: terminal"
TOOLSETS = ("terminal", "file", "code_execution")
CONTAINERS = ("docker", "singularity", "modal", "daytona")
IMAGES = {f"{backend}_image": backend for backend in CONTAINERS}
HERE = (".", "auto", "cwd")  # ways of Hermes to say: the current folder

_SSH = "the OpenSSH configuration says it"
_FIXED = "not a matter of choice here"
_DOCKER = "no policy has it"
_SHELL = "a command's shell starts clean"
WITHOUT_EFFECT: Mapping[str, str] = {
    "auto_source_bashrc": _SHELL,
    "container_persistent": _FIXED,
    "daemon_term_grace_seconds": "the policy's grace says it",
    "degraded_mode": _FIXED,
    "docker_env": "values do not belong here: grant names with env_passthrough",
    "docker_extra_args": _DOCKER,
    "docker_mount_cwd_to_workspace": "the workspace is always there",
    "docker_orphan_reaper": _FIXED,
    "docker_persist_across_processes": _FIXED,
    "docker_run_as_host_user": _FIXED,
    "docker_shared_container_key": _FIXED,
    "docker_shm_size": _DOCKER,
    "font_family": "nothing is drawn here",
    "home_mode": "a sandbox's home is empty",
    "lifetime_seconds": _FIXED,
    "modal_mode": _FIXED,
    "oneshot_completion_wait_seconds": _FIXED,
    "persistent_shell": "the shell's state is always kept",
    "sandbox_dir": _FIXED,
    "shell_init_files": _SHELL,
    "ssh_host": _SSH,
    "ssh_key": _SSH,
    "ssh_persistent": _FIXED,
    "ssh_port": _SSH,
    "ssh_user": _SSH,
    "sudo_password": "nothing becomes root here",
    "temp_dir": _FIXED,
}
_EFFECTIVE = (
    *("backend", "timeout", "cwd", "env_passthrough", "container_cpu", "container_memory", "container_disk"),
    *("docker_network", "docker_forward_env", "docker_volumes", *IMAGES),
)


class Terminal(msgspec.Struct, frozen=True, kw_only=True):
    """`layers`: toolset -> its layer. `without_effect`: the path of a key -> why. `cwd`: the folder to work in, or ""
    where the section does not say one that is ours to choose."""

    layers: Mapping[str, Layer] = {}
    without_effect: Mapping[str, str] = {}
    cwd: str = ""


def read(value: Any, where: str) -> Terminal:
    """The section as layers. Raises Refused with the path of a bad key."""
    section = checks.table(value, where)
    checks.known_keys(section, sorted((*_EFFECTIVE, *WITHOUT_EFFECT)), where)
    said = {key: each for key, each in section.items() if each not in (None, "", [], {})}  # as Hermes' set-up leaves it
    return _Reader(said, where).result()


class _Reader:
    """Reads each key once. `_idle`: the keys that turned out to have no effect, and why."""

    def __init__(self, section: Mapping[str, Any], where: str) -> None:
        self._section = section
        self._where = where
        self._backend = self._parsed("backend", "runner", section.get("backend", "local"))
        self._idle = {key: WITHOUT_EFFECT[key] for key in section if key in WITHOUT_EFFECT}

    def result(self) -> Terminal:
        place, own, cwd = dict(self._place()), dict(self._own()), self._cwd()
        layers = {name: Layer(SOURCE, PolicyLayer(**place), bounded=False) for name in TOOLSETS if place}
        if own:
            layers["terminal"] = Layer(SOURCE, PolicyLayer(**{**place, **own}), bounded=False)
        idle = {f"terminal.{key}": reason for key, reason in sorted(self._idle.items())}
        return Terminal(layers=layers, without_effect=idle, cwd=cwd)

    def _parsed(self, key: str, name: str, value: Any) -> Any:
        """`value` as that of the policy key `name`; an error names `key`, which is what the file says."""
        try:
            return getattr(checks.policy({name: value}, self._where), name)
        except Refused as error:
            message = error.message.replace(f"{self._where}.{name}", f"{self._where}.{key}", 1)
            raise Refused(message, hint=error.hint) from None

    def _counts(self, key: str, backends: tuple[str, ...]) -> bool:
        """Whether a key is there and has an effect; one of another backend's has none."""
        if key in self._section and self._backend not in backends:
            self._idle[key] = f"the backend is {self._backend}"
        return key in self._section and self._backend in backends

    def _place(self) -> Iterator[tuple[str, Any]]:
        """What is said of where tools run: policy key and value."""
        if "backend" in self._section:
            yield "runner", self._backend
        yield from self._amount("container_cpu", "cpus", "a number of processors, such as 2 or 0.5", "{}")
        yield from self._amount("container_memory", "memory", "MiB without a unit, such as 5120", "{}M")
        yield from self._amount("container_disk", "disk", "MiB without a unit, such as 51200", "{}M")
        for key, backend in IMAGES.items():
            if self._counts(key, (backend,)):
                yield "image", self._parsed(key, "image", self._section[key])
        if self._counts("docker_network", ("docker",)):
            if checks.flag(self._section["docker_network"], f"{self._where}.docker_network"):
                self._idle["docker_network"] = "only a policy grants a network"
            else:
                yield "network", "none"
        if self._counts("docker_volumes", ("docker",)):
            yield from self._volumes("docker_volumes")

    def _amount(self, key: str, name: str, what: str, unit: str) -> Iterator[tuple[str, Any]]:
        if not self._counts(key, CONTAINERS):
            return
        value = self._section[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise Refused(f"{self._where}.{key} = {value!r:.60} cannot be used", hint=f"write {what}")
        if value == 0:
            self._idle[key] = f"0 is no limit in Hermes; here the policy's {name} stays"
        else:
            yield name, self._parsed(key, name, unit.format(value))

    def _volumes(self, key: str) -> Iterator[tuple[str, Any]]:
        found: dict[str, list[str]] = {"read": [], "write": []}
        for index, volume in enumerate(checks.names(self._section[key], f"{self._where}.{key}")):
            outside, _, rest = volume.partition(":")
            inside, _, mode = rest.partition(":")
            if not outside.startswith("/") or inside.rstrip("/") != outside.rstrip("/") or mode not in ("", "ro", "rw"):
                hint = "a folder has the same path on both sides here: write /PATH:/PATH or /PATH:/PATH:ro"
                raise Refused(f"{self._where}.{key}[{index}] cannot be used", hint=hint)
            found["read" if mode == "ro" else "write"].append(outside)
        yield from ((name, self._parsed(key, name, paths)) for name, paths in found.items() if paths)

    def _own(self) -> Iterator[tuple[str, Any]]:
        """What is said of the terminal itself."""
        if "timeout" in self._section:
            yield "timeout", self._parsed("timeout", "timeout", self._section["timeout"])
        keys = [key for key in ("env_passthrough",) if key in self._section]
        if self._counts("docker_forward_env", ("docker",)):
            keys.append("docker_forward_env")
        granted = [name for key in keys for name in self._parsed(key, "env", self._section[key])]
        if granted:
            yield "env", tuple(dict.fromkeys(granted))

    def _cwd(self) -> str:
        where = f"{self._where}.cwd"
        cwd = checks.text(self._section.get("cwd", "."), where)
        if cwd in HERE:
            return ""
        if self._backend != "local":
            self._idle["cwd"] = f"the backend is {self._backend}"
            return ""
        if not cwd.startswith(("/", "~/")) and cwd != "~":
            raise Refused(f"{where} is the relative path {cwd!r}", hint="begin it with / or ~/, or write .")
        return cwd
