"""Workers on this machine, in the strongest isolation that it gives without Docker.

Theory of operation
    Tier `namespaces` is bubblewrap (bubblewrap.py), with our init as its pid 1. Tier `process` is the bare interpreter
    in a session of its own, with rlimits, under an init that is a child subreaper: it contains crashes and runaway
    trees, and nothing that means harm; every result says so.

    Who the sandbox is, by who we are and who owns the workspace:
        a plain user               the user itself, in a user namespace
        root, workspace of U's     U
        root, workspace of root's  a uid that exists nowhere else, with the workspace id-mapped, so that what is root's
                                   looks like its own and what it makes is root's; where the file system refuses id
                                   maps, uid 0 without capabilities, and only if cgroups hold its memory and its
                                   processes
    Which Python runs is the policy's `python`, else our own; its prefix is in sight (interpreters.py).

    As root the sources are staged in a mount namespace of the spawner's thread (mounts.py), because the uid that runs
    bubblewrap may not pass a 0700 folder on the way to them. The stage is taken down after the worker's hello.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from hermes_sandbox import bootstrap, bubblewrap, cgroups, interpreters, mounts, process, sight
from hermes_sandbox.errors import Refused, SandboxError
from hermes_sandbox.home import runtime_dir
from hermes_sandbox.policy import Policy, cannot, format_value
from hermes_sandbox.runners import Evidence, WorkerSpec
from hermes_sandbox.worker import wire

INSIDE_ID = 1000  # what a throw-away uid shows as inside: an ordinary user
# What the interpreter, init and the worker need before any tool is loaded, with some room.
LEAST = {"memory": 16 << 20, "pids": 4, "open_files": 32}
NO_CGROUP = "no cgroup is writable here"


class Identity(msgspec.Struct, frozen=True):
    """Who the sandbox's processes are: None is who we are. `inside` is the uid and gid that it sees."""

    uid: int | None
    gid: int | None
    inside: tuple[int, int]
    own_limits: bool = True  # RLIMIT_NPROC counts for it; not for real root


class Runner:
    name = "local"

    def __init__(self) -> None:
        self._spawner = process.Spawner()
        self._stage: mounts.Stage | None = None
        self._cgroups: cgroups.Cgroups | None = None
        self._bwrap = ""
        self._swept = False

    async def start(self, spec: WorkerSpec) -> LocalWorker:
        """A worker in the tier that the policy asks for. Raises Refused or RunnerFailed."""
        started = await asyncio.wrap_future(self._spawner.run(lambda: self._start(spec)))
        self._spawner.run(self._while_it_boots)
        return LocalWorker(started, self._spawner)

    def diagnose(self, noise: str) -> SandboxError:
        return bubblewrap.diagnose(noise)

    def sweep(self) -> int:
        """Remove the cgroups and folders of workers whose supervisor is dead; their processes died with it."""
        orphans = [folder for folder in runtime_dir().iterdir() if process.is_orphaned(folder.name)]
        for folder in orphans:
            process.remove_tree(folder)
        return cgroups.sweep() + len(orphans)

    async def close(self) -> None:
        if self._stage is not None:
            self._spawner.run(self._stage.close)
        await asyncio.get_running_loop().run_in_executor(None, self._spawner.close)

    # On the spawner's thread from here on -------------------------------------------------------------------------

    def _start(self, spec: WorkerSpec) -> Started:
        if self._cgroups is None:
            self._cgroups = cgroups.probe()
        sight.check_workspace(spec)
        _check_least(spec.policy)
        _check_keys(spec.policy)
        started = Started(spec)
        try:
            started.python = _interpreter(spec)
            if spec.policy.tier == "process":
                self._start_bare(started)
            else:
                self._start_sandbox(started)
        except BaseException:
            started.clean_up()
            raise
        return started

    def _while_it_boots(self) -> None:
        if self._stage is not None:
            with contextlib.suppress(Refused, OSError):  # who needs it will be told
                self._stage.prepare()
        if not self._swept:
            self._swept = True
            self.sweep()

    def _start_bare(self, started: Started) -> None:
        policy = started.spec.policy
        if policy.network == "none" and "network" in policy.explicit:
            raise cannot(
                policy, "network", "tier process cannot take the network away", "use tier namespaces or network host"
            )
        if policy.hide:
            raise cannot(policy, "hide", "tier process shows everything", "use tier namespaces")
        started.folder = Path(tempfile.mkdtemp(prefix=process.owner_prefix("worker"), dir=runtime_dir()))
        started.tier = "process"
        started.notes = ("tier process contains crashes; it is no sandbox",)
        identity = Identity(None, None, (os.getuid(), os.getgid()), own_limits=False)
        env = {"HOME": str(started.folder / "home"), "TMPDIR": str(started.folder / "tmp")}
        self._settle(started, identity, env)
        with started.joined():
            started.child = process.start(bootstrap.command(str(started.python.path)))

    def _start_sandbox(self, started: Started) -> None:
        self._bwrap = self._bwrap or bubblewrap.find()
        started.tier = "namespaces"
        spec = started.spec
        program, identity, readable, writable = self._sources(started)
        self._settle(started, identity, {"HOME": bubblewrap.HOME, "TMPDIR": "/tmp"})
        hidden = sight.hide(spec, readable, writable)
        view = bubblewrap.View(
            uid=identity.inside[0],
            gid=identity.inside[1],
            network=spec.policy.network == "host",
            cwd=spec.workspace,
            readable=readable,
            writable=writable,
            hidden=hidden,
        )
        options, fds = bubblewrap.arguments(view)
        try:
            argv = [str(program), *options, *bootstrap.command(str(started.python.path))]
            with started.joined():
                started.child = process.start(argv, user=identity.uid, group=identity.gid, pass_fds=fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _sources(self, started: Started) -> tuple[Path, Identity, dict[Path, Path], dict[Path, Path]]:
        """bwrap's path, who runs it, and where each folder is bound from."""
        spec, program = started.spec, Path(self._bwrap)
        python = started.python
        prefixes = [] if _is_system(python.path) else dict.fromkeys((python.prefix, python.alias or python.prefix))
        shared = [*prefixes, *(path for path in map(Path, packages(spec.policy)) if not _is_system(path))]
        granted = [Path(path) for path in spec.policy.read]
        writable = [spec.workspace, *(Path(path) for path in spec.policy.write)]
        sight.must_exist(granted + writable)
        sight.refuse_links(granted + writable, [*writable, *spec.writable])
        plain = {p: p.resolve() for p in shared + granted}, {p: p.resolve() for p in writable}
        if os.geteuid() != 0:
            return program, Identity(None, None, (os.getuid(), os.getgid())), *plain
        owner = spec.workspace.stat()
        if owner.st_uid:
            identity = Identity(owner.st_uid, owner.st_gid, (owner.st_uid, owner.st_gid))
        else:
            drop = self._entered_stage().drop_id()
            identity = Identity(drop, drop, (INSIDE_ID, INSIDE_ID))
        stage = self._entered_stage()
        try:
            binds = {path: started.staged(stage, stage.bind(path)) for path in (*shared, program)}
            if owner.st_uid:
                maps = {path: started.staged(stage, stage.bind(path.resolve())) for path in granted + writable}
            else:
                maps = {path: started.staged(stage, _idmap(stage, path, identity)) for path in granted + writable}
        except mounts.MountRefused as refusal:
            started.unstage()
            return program, self._as_root(refusal), *plain
        readable = {path: binds[path] for path in shared} | {path: maps[path] for path in granted}
        return binds[program], identity, readable, {path: maps[path] for path in writable}

    def _as_root(self, refusal: Exception) -> Identity:
        assert self._cgroups is not None
        if not (self._cgroups.can("memory") and self._cgroups.can("pids")):
            raise Refused(
                f"the workspace's file system refuses id maps ({refusal}), and {NO_CGROUP} to hold a sandbox of root's",
                hint="give the workspace to a plain user (chown), or run as one",
            )
        return Identity(None, None, (0, 0), own_limits=False)

    def _entered_stage(self) -> mounts.Stage:
        if self._stage is None:
            self._stage = mounts.Stage()
            self._stage.enter()
        return self._stage

    def _settle(self, started: Started, identity: Identity, env: dict[str, str]) -> None:
        """Decide what enforces each limit, and write down what init has to do for it."""
        assert self._cgroups is not None
        spec, policy, groups = started.spec, started.spec.policy, self._cgroups
        limits = ("memory", "pids", "cpus")
        in_groups = {name: value for name in limits if (value := getattr(policy, name)) and groups.can(name)}
        if policy.cpus is not None and "cpus" not in in_groups:
            hint = "take cpus out of the policy, or run where a cgroup with the cpu controller is delegated"
            raise cannot(policy, "cpus", "no cgroup that limits CPUs is writable here", hint)
        if policy.pids and not identity.own_limits and "pids" not in in_groups and "pids" in policy.explicit:
            why = f"tier {started.tier} cannot limit processes, since {NO_CGROUP}"
            raise cannot(policy, "pids", why, "use tier namespaces")
        if in_groups:
            started.group = groups.create(spec.name, killable=started.tier == "process", **in_groups)
            started.mechanisms = {name: groups.mechanism(name) for name in (*in_groups, "cpu_time") if groups.can(name)}
        watched = policy.memory if policy.memory and "memory" not in in_groups else None
        started.mechanisms = {
            "memory": "watchdog", "cpu_time": "watchdog", "file_size": "rlimit", "open_files": "rlimit",
            **({"pids": "rlimit in the user namespace"} if identity.own_limits else {}), **started.mechanisms,
        }  # fmt: skip
        started.boot = wire.Boot(
            nonce=os.urandom(16).hex(),
            pid_namespace=started.tier == "namespaces",
            seccomp=started.tier == "namespaces",
            cwd=str(spec.workspace),
            env={**spec.env, **env},
            packages=packages(policy),
            memory=watched,
            memory_data=watched,
            tmpfs=["/tmp", "/dev/shm", bubblewrap.HOME] if started.tier == "namespaces" else [],
            cpu_watch=policy.cpu_time is not None and started.mechanisms["cpu_time"] == "watchdog",
            pids=policy.pids if identity.own_limits else None,
            file_size=policy.file_size,
            open_files=policy.open_files,
        )


class Started:
    """What one start made, until the worker owns it. Belongs to the spawner's thread."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.tier = ""
        self.notes: tuple[str, ...] = ()
        self.mechanisms: dict[str, str] = {}
        self.boot = wire.Boot(nonce="")
        self.python = interpreters.own()
        self.child: process.Child | None = None
        self.group: cgroups.Group | None = None
        self.folder: Path | None = None
        self._stage: mounts.Stage | None = None
        self._staged: list[Path] = []

    def staged(self, stage: mounts.Stage, path: Path) -> Path:
        self._stage = stage
        self._staged.append(path)
        return path

    def joined(self) -> contextlib.AbstractContextManager[None]:
        """Around a start: what is started is born in the group, where there is one and that can be had."""
        return contextlib.nullcontext() if self.group is None else self.group.joined()

    def unstage(self) -> None:
        while self._staged and self._stage is not None:
            self._stage.release(self._staged.pop())
        if self._stage is not None:
            self._stage.forget_maps()

    def clean_up(self) -> None:
        self.unstage()
        if self.group is not None:
            self.group.remove()
        if self.folder is not None:
            process.remove_tree(self.folder)


class LocalWorker(process.LocalProcess):
    def __init__(self, started: Started, spawner: process.Spawner) -> None:
        assert started.child is not None
        super().__init__(started.child, has_inner=started.tier == "namespaces")
        self._started = started
        self._spawner = spawner
        self.tier, self.notes = started.tier, started.notes
        self.mechanisms, self.boot = started.mechanisms, started.boot
        self.same_python = started.python.like_ours

    async def confine(self) -> None:
        """Everything of the sandbox is alive, ours and idle now: hold its first process, and put all of it into those
        cgroups that it was not born in. The mounts that were staged for it are its own by now."""
        self.find_inner()
        await self._on_thread(self._confine)

    def _confine(self) -> None:
        group = self._started.group
        if group is not None and group.needs_adding:
            group.add([self.pid, *process.descendants(self.pid)])
        self._started.unstage()

    def evidence(self) -> Evidence:
        group = self._started.group
        if group is None:
            return Evidence()
        cpu_s, peak = group.usage()
        return Evidence(oom_kills=group.oom_kills(), pids_refused=group.pids_refused(), cpu_s=cpu_s, peak_bytes=peak)

    async def kill(self) -> bool:
        if self._started.group is not None:
            self._started.group.kill()
        return await super().kill()

    async def release(self) -> None:
        self.close_all()
        await self._on_thread(self._started.clean_up)

    async def _on_thread(self, function: Callable[[], None]) -> None:
        await asyncio.wrap_future(self._spawner.run(function))


def packages(policy: Policy) -> list[str]:
    """The folders that `packages` of the policy adds to the worker's path."""
    if "host" not in policy.packages:
        return list(policy.packages)
    own = sysconfig.get_paths()
    return list(dict.fromkeys((own["purelib"], own["platlib"])))


def _interpreter(spec: WorkerSpec) -> interpreters.Interpreter:
    if not spec.policy.python:
        return interpreters.own()
    try:
        found = interpreters.find(spec.policy.python)
    except interpreters.NoInterpreter as error:
        raise cannot(spec.policy, "python", str(error), error.hint) from None
    sight.check_python(spec, Path(spec.policy.python), found.path)
    return found


def _idmap(stage: mounts.Stage, path: Path, identity: Identity) -> Path:
    assert identity.uid is not None
    assert identity.gid is not None
    owner = path.stat()
    return stage.idmapped(path.resolve(), (owner.st_uid, owner.st_gid), (identity.uid, identity.gid))


def _is_system(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in bubblewrap.SYSTEM_FOLDERS)


def _check_least(policy: Policy) -> None:
    for name, least in LEAST.items():
        value = getattr(policy, name)
        if value is not None and value < least:
            asked, needed = format_value(name, value), format_value(name, least)
            raise Refused(f"{name} = {asked} is too little for a worker", hint=f"give it at least {needed}")


def _check_keys(policy: Policy) -> None:
    """Raises Refused for what nothing here could enforce, in any tier."""
    if policy.disk is not None:
        raise cannot(policy, "disk", "runner local has no quotas", "use file_size, which bounds each file")
    if policy.image:
        raise cannot(policy, "image", "runner local has no images", "take it out, or use a runner that has")
    if not isinstance(policy.network, str):
        raise cannot(
            policy, "network", "hosts cannot be told apart in this version", 'write network = "none" or "host"'
        )
    if policy.reuse == "process":
        raise cannot(
            policy, "reuse", "there is no fork for each call in this version", 'write reuse = "session" or "never"'
        )
    if policy.may_call:
        raise cannot(policy, "may_call", "code cannot call tools in this version", "take it out of the policy")
