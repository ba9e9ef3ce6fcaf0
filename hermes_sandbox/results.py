"""The record of one call: what `call` returns, and `--json` and `--report` print."""

from __future__ import annotations

from typing import Any

import msgspec

from hermes_sandbox.errors import EXIT_CODES, Outcome

RECORD_VERSION = 1


class Failure(msgspec.Struct, frozen=True):
    """Why a call did not end `ok`: what happened, and what to do about it."""

    message: str
    hint: str = ""


class LimitHit(msgspec.Struct, frozen=True):
    """The limit that ended a call. `value` and `observed` are in the policy's unit: seconds, bytes or a count."""

    name: str
    value: float
    observed: float | None = None
    mechanism: str = ""


class Usage(msgspec.Struct, frozen=True):
    """What a call cost. `scope` says whose cost was measured: "cgroup", "tree", "worker", or "" when unknown."""

    wall_s: float = 0.0
    cpu_s: float | None = None
    peak_bytes: int | None = None
    scope: str = ""


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one call ended. `result` is the tool's own answer and is only set when the handler gave one."""

    v: int = RECORD_VERSION
    call_id: str
    task_id: str
    tool: str
    outcome: Outcome
    result: str | dict[str, Any] | None = None
    error: Failure | None = None
    exit_code: int | None = None
    signal: int | None = None
    limit: LimitHit | None = None
    usage: Usage = msgspec.field(default_factory=Usage)
    runner: str = ""
    tier: str = ""
    blocked: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    stdout_tail: str = ""
    stderr_tail: str = ""
    truncated: bool = False

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    @property
    def cli_exit_code(self) -> int:
        """The exit code of `hermes-sandbox call` for this end."""
        return EXIT_CODES[self.outcome]

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    def as_tool_string(self) -> str | dict[str, Any]:
        """What `dispatch` hands to a model: the tool's answer unchanged, else a JSON object that names the end; with
        the answer in it where there is one that a limit makes doubtful."""
        if self.result is not None and self.outcome in ("ok", "tool_error"):
            return self.result
        message = self.error.message if self.error else self.outcome
        answer: dict[str, Any] = {"error": message, "error_type": self.outcome}
        if self.error and self.error.hint:
            answer["hint"] = self.error.hint
        for name in ("exit_code", "signal", "limit"):
            if (value := getattr(self, name)) is not None:
                answer[name] = value
        for name in ("stdout_tail", "stderr_tail"):
            if tail := getattr(self, name):
                answer[name] = tail
        if self.result is not None:
            answer["result"] = self.result
        answer["wall_s"] = round(self.usage.wall_s, 3)
        return msgspec.json.encode(answer).decode()
