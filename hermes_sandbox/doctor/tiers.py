"""Which isolation can be had here, and what would help where it is not the strongest.

Whether a tier can be had is tried. What stands in the way of user namespaces is then looked up in the places where the
kernel and the distributions say so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from hermes_sandbox.findings import Finding, of_error
from hermes_sandbox.policy import Policy
from hermes_sandbox.trial import Trials, Verdict

AREA = "tier"
KINDS = ("user", "pid", "mnt", "net", "ipc", "uts")  # of namespaces that a sandbox needs
OF_THE_TREE = ("memory", "pids", "cpu_time")  # limits that the policy has by default, or that cost most when missing
PROFILES = ("bwrap-userns-restrict", "bwrap", "usr.bin.bwrap")
EXTRA_PROFILE = Path("usr/share/apparmor/extra-profiles/bwrap-userns-restrict")


async def look(trials: Trials) -> list[Finding]:
    """A worker is started in each tier, with the built-in policy."""
    strong = await trials.judge(Policy(tier="namespaces"))
    weak = await trials.judge(Policy(tier="process"))
    return [_namespaces(strong, weak), Finding(AREA, "landlock", "ok", _landlock(strong)), _process(weak)]


def _namespaces(strong: Verdict, weak: Verdict) -> Finding:
    if strong.error is None:
        return Finding(AREA, "namespaces", "ok", f"works, and is the strongest of this version; {_limits(strong)}")
    best = "tier process is all that can be had here" if weak.error is None else "no tier can be had here"
    found = of_error(AREA, "namespaces", strong.error, "warn", "\n".join(obstacles()))
    return Finding(AREA, "namespaces", "warn", f"{best}: {found.message}", found.hint)


def _landlock(strong: Verdict) -> str:
    instead = "gets namespaces" if strong.error is None else "is refused"
    return f"not in this version; a policy that accepts it, which is the default, {instead}"


def _process(weak: Verdict) -> Finding:
    if weak.error is not None:
        return of_error(AREA, "process", weak.error)
    return Finding(AREA, "process", "ok", f"works where it is asked for; it is no sandbox; {_limits(weak)}")


def _limits(verdict: Verdict) -> str:
    names = dict.fromkeys((*OF_THE_TREE, *sorted(verdict.mechanisms)))
    return "limits: " + ", ".join(f"{name} by {verdict.mechanisms.get(name, 'nothing')}" for name in names)


def obstacles(root: Path = Path("/")) -> Iterator[str]:
    """What stands in the way of a sandbox's namespaces, and the command that takes it away. `root`: what /proc, /etc
    and the rest are looked for below."""
    if _value(root, "kernel/unprivileged_userns_clone") == "0":
        yield _sysctl("kernel.unprivileged_userns_clone", "1")
    for kind in KINDS:
        if _value(root, f"user/max_{kind}_namespaces") == "0":
            yield _sysctl(f"user.max_{kind}_namespaces", "10000")
    if _value(root, "kernel/apparmor_restrict_unprivileged_userns") == "1":
        yield from _apparmor(root)
    if _is_filtered(root):
        yield (
            "this process runs under a system call filter, as in a container: for docker start it with --security-opt "
            "seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
        )


def _apparmor(root: Path) -> Iterator[str]:
    have = next((name for name in PROFILES if (root / "etc/apparmor.d" / name).exists()), None)
    if have is not None:
        yield f"AppArmor's profile {have} is for /usr/bin/bwrap: have that one, from the package bubblewrap"
        return
    extra = f"/{EXTRA_PROFILE}"
    package = "" if (root / EXTRA_PROFILE).exists() else "the package apparmor-profiles has one: install it, then "
    yield (
        f"AppArmor wants a profile for /usr/bin/bwrap: {package}sudo install -m 644 {extra} /etc/apparmor.d/ && "
        f"sudo apparmor_parser -r /etc/apparmor.d/{EXTRA_PROFILE.name}"
    )
    yield f"or, for all programs: {_sysctl('kernel.apparmor_restrict_unprivileged_userns', '0')}"


def _sysctl(name: str, value: str) -> str:
    return f"sudo sysctl -w {name}={value} (keep it by a line in /etc/sysctl.d/)"


def _value(root: Path, name: str) -> str:
    """What a sysctl says; "" for one that this kernel does not have."""
    with contextlib.suppress(OSError):
        return (root / "proc/sys" / name).read_text(encoding="ascii", errors="replace").strip()
    return ""


def _is_filtered(root: Path) -> bool:
    with contextlib.suppress(OSError):
        status = (root / "proc/self/status").read_text(encoding="utf-8", errors="replace")
        return any(line.split() == ["Seccomp:", "2"] for line in status.splitlines())
    return False
