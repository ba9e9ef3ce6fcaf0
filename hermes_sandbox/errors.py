"""Every way a call can end, with its exit code; and a class for each end that is raised on the way, with a hint.

The outcomes are a closed list (README, "How a call ends"). Code raises these classes; `supervisor` turns them into a
`CallResult`, and only the command line turns that into text and an exit code. An error of the sandbox is therefore
never mistaken for a tool's own answer.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Outcome = Literal[
    "ok",
    "tool_error",
    "invalid_arguments",
    "unavailable",
    "bad_result",
    "protocol",
    "refused",
    "timeout",
    "runner_failed",
    "cancelled",
    "limit",
    "crashed",
]

EXIT_CODES: dict[Outcome, int] = {
    "ok": 0,
    "tool_error": 1,
    "invalid_arguments": 3,
    "unavailable": 4,
    "bad_result": 5,
    "protocol": 76,  # EX_PROTOCOL of sysexits.h
    "refused": 78,  # EX_CONFIG of sysexits.h
    "timeout": 124,  # as timeout(1)
    "runner_failed": 125,  # as `docker run` when the engine fails
    "cancelled": 130,  # 128 + SIGINT
    "limit": 137,  # 128 + SIGKILL, as an out-of-memory kill
    "crashed": 139,  # 128 + SIGSEGV
}


class SandboxError(Exception):
    """Base of all our errors. `message` says what happened, `hint` what to do about it."""

    outcome: ClassVar[Outcome] = "crashed"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]


class InvalidArguments(SandboxError):
    """The arguments do not fit the tool's schema. Nothing was started."""

    outcome = "invalid_arguments"


class Unavailable(SandboxError):
    """No such tool, or it is switched off, did not load, or its check said no."""

    outcome = "unavailable"


class ProtocolError(SandboxError):
    """The worker sent bytes that are not the protocol."""

    outcome = "protocol"


class Refused(SandboxError):
    """What was asked for cannot be enforced here, or is not allowed. Nothing was started."""

    outcome = "refused"


class TimedOut(SandboxError):
    """The wall-clock or idle deadline passed."""

    outcome = "timeout"


class RunnerFailed(SandboxError):
    """The runner could not start the worker, lost it, or could not confirm its end."""

    outcome = "runner_failed"


class Cancelled(SandboxError):
    """The caller stopped the call."""

    outcome = "cancelled"
