"""Builds the CallResult of one call, whether it ran or was refused before anything started."""

from __future__ import annotations

import os
import time

from hermes_sandbox.driver import Worker
from hermes_sandbox.errors import SandboxError
from hermes_sandbox.exchange import Exchange
from hermes_sandbox.outcomes import Case, judge, usage
from hermes_sandbox.policy import Policy
from hermes_sandbox.results import CallResult, Failure, Usage
from hermes_sandbox.runners import Evidence
from hermes_sandbox.worker import wire


class Record:
    """Collects what is known of a call on its way. `withheld`: names of env that the tool asks for and was not
    given."""

    def __init__(self, tool: str, task_id: str) -> None:
        self.call_id = os.urandom(8).hex()
        self.tool = tool
        self.task_id = task_id
        self.policy: Policy | None = None
        self.notes: list[str] = []
        self.withheld: list[str] = []
        self.cancelled = False  # by its caller, before it had a worker
        self.begun = time.monotonic()

    def refused(self, error: SandboxError) -> CallResult:
        """The record of a call that did not reach a worker."""
        return CallResult(
            call_id=self.call_id,
            task_id=self.task_id,
            tool=self.tool,
            outcome=error.outcome,
            error=Failure(error.message, error.hint),
            usage=Usage(wall_s=round(time.monotonic() - self.begun, 6)),
            runner=self.policy.runner if self.policy is not None else "",
        )

    def ended(self, worker: Worker, exchange: Exchange, before: Evidence) -> CallResult:
        """The record of a call that a worker took, however that went."""
        assert self.policy is not None
        plain = exchange.cause == "answered" and exchange.failed is None and _is_plain(exchange.reply)
        after = worker.counted
        if not plain and not exchange.lost:  # reading the counters costs more than a warm call
            after = worker.counted = worker.process.evidence()
        case = Case(
            exchange=exchange,
            policy=self.policy,
            mechanisms=dict(worker.process.mechanisms),
            ended=worker.session.ended,
            before=before,
            after=Evidence() if plain else after,
            noise=worker.noise,
            background=tuple(worker.background.running),
        )
        verdict = judge(case)
        trace = exchange.failed.trouble.trace if exchange.failed is not None else ""
        return CallResult(
            call_id=self.call_id,
            task_id=self.task_id,
            tool=self.tool,
            outcome=verdict.outcome,
            result=verdict.result,
            error=verdict.error,
            exit_code=verdict.exit_code,
            signal=verdict.signal,
            limit=verdict.limit,
            usage=usage(case),
            runner=self.policy.runner,
            tier=worker.process.tier,
            notes=[*self.notes, *worker.process.notes, *self._afterthoughts(case, verdict.outcome)],
            stdout_tail=exchange.stdout.text,
            stderr_tail=exchange.stderr.text + trace,
            truncated=exchange.stdout.truncated or exchange.stderr.truncated,
        )

    def _afterthoughts(self, case: Case, outcome: str) -> list[str]:
        notes, exchange = [], case.exchange
        if outcome == "ok" and case.out_of_memory():
            notes.append(f"a process of it was killed at the limit memory ({case.mechanisms.get('memory', '')})")
        done = exchange.failed.trouble if exchange.failed is not None else exchange.reply
        if leftovers := getattr(done, "leftovers", 0):
            notes.append(f"{leftovers} process(es) that it had left running were ended")
        if exchange.cause == "cpu_time" and case.background:
            notes.append(f"what runs in the background counts too: {', '.join(case.background)}")
        if exchange.lost and self.tool != "exec":
            notes.append("its worker ended with it: the task's state there is lost")
        if self.withheld and outcome != "ok":
            notes.append(f"not granted to it: {', '.join(self.withheld)} (env in the policy grants)")
        return notes


def _is_plain(reply: object) -> bool:
    """Whether a reply leaves no question to the kernel's counters, which tell of the programs that a call ran."""
    return isinstance(reply, wire.CallDone) and reply.code is None and reply.signal is None
