"""Names how a call ended: from an exchange, init's report and the kernel's counters to one outcome of the closed list.

The order is the argument. What we could not confirm comes first, then what we did ourselves (deadline, cancel, limits
that the supervisor watches), then what the worker's end shows, and only then what the worker says. A limit is told from
a crash by evidence: the kernel's count of out-of-memory kills, init's watch, a limit's own signal, or the error that
the limit gives to whoever runs into it.
"""

from __future__ import annotations

import errno
import signal
from typing import Any

import msgspec

from hermes_sandbox.errors import Outcome
from hermes_sandbox.exchange import Exchange
from hermes_sandbox.policy import Policy, format_value
from hermes_sandbox.protocol import BadMessage, decode_json
from hermes_sandbox.results import Failure, LimitHit, Usage
from hermes_sandbox.runners import Evidence
from hermes_sandbox.session import Failed
from hermes_sandbox.worker import wire

TAMPERED = "the tool tampered with its worker"
NEAR_LIMIT = 0.9  # of `memory`: an abort this close to RLIMIT_DATA was the limit's doing (malloc gave up)
SHELL_SIGNAL = 128  # a shell's exit code for a program that died of signal N is this plus N
NOT_FOUND_EXIT, NOT_EXECUTABLE_EXIT = 127, 126  # what shells say of a command that is not there, or cannot be run

ERRNO_LIMITS = {errno.EFBIG: "file_size", errno.EMFILE: "open_files", errno.EAGAIN: "pids"}
SIGNAL_LIMITS: dict[int, str] = {signal.SIGXCPU: "cpu_time", signal.SIGXFSZ: "file_size"}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a CallResult that says how it ended."""

    outcome: Outcome
    result: str | dict[str, Any] | None = None
    error: Failure | None = None
    exit_code: int | None = None
    signal: int | None = None
    limit: LimitHit | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one exchange. `before` and `after` are the kernel's counts around it, `noise` the runner's
    words."""

    exchange: Exchange
    policy: Policy
    mechanisms: dict[str, str]
    ended: wire.Ended | None = None
    before: Evidence = Evidence()
    after: Evidence = Evidence()
    noise: str = ""
    background: tuple[str, ...] = ()  # what is known to run there

    def out_of_memory(self) -> bool:
        return (self.after.oom_kills or 0) > (self.before.oom_kills or 0)

    def forks_refused(self) -> bool:
        """Whether a fork was refused, where that is counted; where it is not, whether it may have been."""
        if self.after.pids_refused is None:
            return "pids" in self.mechanisms
        return self.after.pids_refused > (self.before.pids_refused or 0) or "rlimit" in self.mechanisms.get("pids", "")

    def limit(self, name: str, observed: float | None = None, mechanism: str = "") -> Verdict:
        """The verdict "limit" for `name`, with its figure and what enforced it."""
        value = float(getattr(self.policy, name) or 0)
        mechanism = mechanism or self.mechanisms.get(name, "")
        hit = LimitHit(name=name, value=value, observed=observed, mechanism=mechanism)
        seen = f", {format_value(name, observed)} seen" if observed is not None else ""
        hint = f"raise it with {name} in the policy (--{name.replace('_', '-')}), if the tool is worth it"
        return Verdict(
            outcome="limit",
            limit=hit,
            error=Failure(f"hit the limit {name} = {format_value(name, value)}{seen} ({mechanism})", hint),
        )


def judge(case: Case) -> Verdict:
    exchange = case.exchange
    if not exchange.confirmed:
        message = "the worker was killed, but nothing confirmed that it is dead"
        return Verdict(
            outcome="runner_failed", error=Failure(message, "look for it with ps; what it may still do is unknown")
        )
    match exchange.cause:
        case "answered":
            return (
                _by_failure(case, exchange.failed) if exchange.failed is not None else _by_reply(case, exchange.reply)
            )
        case "died":
            return _by_death(case)
        case "timeout" | "idle_timeout":
            return _timed_out(case)
        case "cancelled":
            return Verdict(outcome="cancelled", error=Failure(exchange.detail or "the caller cancelled the call"))
        case "protocol":
            return Verdict(outcome="protocol", error=Failure(exchange.detail, TAMPERED))
        case "output":
            return case.limit("output", exchange.output_bytes, "supervisor")
        case "cpu_time":
            return case.limit("cpu_time", round(exchange.cpu_s, 3))


def _timed_out(case: Case) -> Verdict:
    watch = case.exchange.watch
    if case.exchange.half_a_frame:
        return _half_a_frame()
    if case.exchange.cause == "idle_timeout":
        message, key = f"gave no sign for {watch.idle_timeout:g} s (idle_timeout)", "idle_timeout"
    else:
        message, key = f"did not end within {watch.timeout:g} s (timeout)", "timeout"
    return Verdict(outcome="timeout", error=Failure(message, f"raise {key} in the policy, or make the work smaller"))


def _half_a_frame() -> Verdict:
    return Verdict(outcome="protocol", error=Failure("the worker sent half a frame and nothing after it", TAMPERED))


def _by_death(case: Case) -> Verdict:
    """The worker died with the request, by itself or by the kernel's hand."""
    ended = case.ended
    if case.exchange.half_a_frame and (ended is None or ended.signal is None):
        return _half_a_frame()
    if ended is None:
        said = f": {case.noise[-300:]}" if case.noise else ""
        message = f"the sandbox ended without a report{said}"
        return Verdict(outcome="runner_failed", error=Failure(message, "something outside ended it"))
    if ended.limit == "memory":
        return case.limit("memory", ended.observed)
    if case.out_of_memory():
        return case.limit("memory", case.after.peak_bytes)
    if ended.signal is None:
        message = f"the worker exited with code {ended.code} in the middle of the call"
        return Verdict(outcome="crashed", exit_code=ended.code, error=Failure(message, "a tool must return, not exit"))
    if ended.signal in SIGNAL_LIMITS:
        return case.limit(SIGNAL_LIMITS[ended.signal], mechanism="rlimit")
    memory = case.policy.memory
    if case.mechanisms.get("memory") == "watchdog" and memory and ended.peak_bytes >= NEAR_LIMIT * memory:
        return case.limit("memory", ended.peak_bytes, "rlimit")
    message = f"the worker was ended by {signal_name(ended.signal)}"
    return Verdict(
        outcome="crashed",
        signal=ended.signal,
        error=Failure(message, "the stack is in stderr_tail, where there was one"),
    )


def _by_failure(case: Case, failed: Failed) -> Verdict:
    """The worker lives and says that the request failed."""
    trouble = failed.trouble
    match failed.code:
        case wire.RESULT_TOO_LARGE:
            return case.limit("result", trouble.size, "worker")
        case wire.BAD_RESULT:
            return Verdict(
                outcome="bad_result", error=Failure(failed.message, "a handler returns a string, JSON by custom")
            )
        case wire.NOT_STARTED:
            code = NOT_FOUND_EXIT if trouble.errno == errno.ENOENT else NOT_EXECUTABLE_EXIT
            return Verdict(
                outcome="tool_error", exit_code=code, error=Failure(f"cannot start the command: {failed.message}")
            )
        case wire.TOOL_RAISED | wire.LOAD_FAILED:
            if (name := _limit_of(case, failed)) is not None:
                return case.limit(name)
            if failed.code == wire.LOAD_FAILED:
                return Verdict(
                    outcome="unavailable", error=Failure(f"the tool did not load: {failed.message}", trouble.trace)
                )
            return Verdict(outcome="tool_error", error=Failure(failed.message, trouble.trace))
        case _:
            return Verdict(
                outcome="protocol", error=Failure(f"the worker answered with error {failed.code}: {failed.message}")
            )


def _limit_of(case: Case, failed: Failed) -> str | None:
    """The limit that the tool's exception comes from, if one was set that gives this exception."""
    trouble = failed.trouble
    if trouble.kind == "MemoryError" or case.out_of_memory():
        name: str | None = "memory"
    elif trouble.kind == "RuntimeError" and "can't start new thread" in failed.message:
        name = "pids"
    else:
        name = ERRNO_LIMITS.get(trouble.errno or 0)
        if name == "pids" and not case.forks_refused():
            name = None  # EAGAIN says many things
    return name if name is not None and getattr(case.policy, name) is not None else None


def _by_reply(case: Case, reply: Any) -> Verdict:
    if isinstance(reply, wire.ExecDone):
        return _by_exit(case, reply)
    size = len(bytes(reply.multimodal))
    if size > case.policy.result:
        return case.limit("result", size, "supervisor")
    if size:
        try:
            result: str | dict[str, Any] = decode_json(reply.multimodal)
        except BadMessage as error:
            return Verdict(outcome="protocol", error=Failure(error.message, TAMPERED))
        if not isinstance(result, dict):
            return Verdict(outcome="bad_result", error=Failure("its multimodal result is no object"))
        failed = bool(result.get("error"))
    else:
        result = reply.text or ""
        if len(result) > case.policy.result:
            return case.limit("result", len(result), "supervisor")
        failed = has_error(result)
    end = {"exit_code": reply.code, "signal": reply.signal}
    # Whoever reads the answer cannot see that a process behind it was killed for want of memory.
    limit = case.limit("memory", case.after.peak_bytes) if case.out_of_memory() else None
    if limit is not None or (limit := _limit_behind(case, reply.code, reply.signal)) is not None:
        return msgspec.structs.replace(limit, result=result, **end)
    if failed:
        return Verdict(outcome="tool_error", result=result, error=Failure("the tool answered with an error"), **end)
    return Verdict(outcome="ok", result=result, **end)


def _by_exit(case: Case, done: wire.ExecDone) -> Verdict:
    """A command's own exit is its own business, unless a limit was behind it."""
    if (limit := _limit_behind(case, done.code, done.signal)) is not None:
        return limit
    if done.signal is not None:
        message = f"the command was ended by {signal_name(done.signal)}"
        return Verdict(outcome="crashed", signal=done.signal, error=Failure(message))
    return Verdict(outcome="ok", exit_code=done.code)


def _limit_behind(case: Case, code: int | None, number: int | None) -> Verdict | None:
    """The limit that ended a program, or part of what it ran: by what the kernel counted meanwhile, and by the signal
    that it died of, or that its shell reports (128 + N)."""
    if not code and number is None:
        return None
    if case.out_of_memory():
        return case.limit("memory", case.after.peak_bytes)
    if number is None and code is not None and code > SHELL_SIGNAL:
        number = code - SHELL_SIGNAL
    name = SIGNAL_LIMITS.get(number or 0)
    if name is not None and getattr(case.policy, name) is not None:
        return case.limit(name, mechanism="rlimit")
    if (case.after.pids_refused or 0) > (case.before.pids_refused or 0):
        return case.limit("pids")
    return None


class _Answer(msgspec.Struct):
    error: Any = None


def has_error(text: str) -> bool:
    """Whether a tool's answer is a JSON object with a truthy `error`. Any other text is an answer."""
    if text.lstrip()[:1] != "{":
        return False
    try:
        return bool(msgspec.json.decode(text, type=_Answer).error)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return False


def usage(case: Case) -> Usage:
    """What the call cost, by the best counter there is: the tree's cgroup, else init's sum, else the worker's own."""
    exchange, before, after = case.exchange, case.before, case.after
    wall = round(exchange.wall_s, 6)
    cost: Any = case.ended if exchange.lost else None
    if cost is None:
        cost = exchange.failed.trouble.cost if exchange.failed is not None else getattr(exchange.reply, "cost", None)
    peaks = [peak for peak in (after.peak_bytes, getattr(cost, "peak_bytes", None)) if peak is not None]
    peak = max(peaks, default=None)  # a cgroup does not count what was there before the worker was put into it
    if after.cpu_s is not None:
        cpu = max(0.0, after.cpu_s - (before.cpu_s or 0.0))
        return Usage(wall_s=wall, cpu_s=round(cpu, 6), peak_bytes=peak, scope="cgroup")
    if cost is None:
        return Usage(wall_s=wall)
    return Usage(wall_s=wall, cpu_s=round(cost.cpu_s, 6), peak_bytes=peak, scope="tree" if exchange.lost else "worker")


def signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
