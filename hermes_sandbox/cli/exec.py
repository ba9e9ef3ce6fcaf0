"""`hermes-sandbox exec -- CMD`: run a command under limits, with its own exit code; made for CI jobs."""

from __future__ import annotations

import signal
import threading
from queue import Empty, SimpleQueue
from typing import Any

import click

from hermes_sandbox.cli import say
from hermes_sandbox.cli.options import json_option, policy_options, supervisor, taken_from, unstarted
from hermes_sandbox.cli.reports import Report, ReportFile
from hermes_sandbox.cli.streams import read_in, write_out
from hermes_sandbox.errors import EXIT_CODES, SandboxError
from hermes_sandbox.policy import UNSET, Policy, PolicyLayer
from hermes_sandbox.results import CallResult
from hermes_sandbox.sync import Supervisor

AT_ONCE = 0.1  # s between a cancel and the next, which does not wait for the grace
RETRY = 1.0  # s after a cancel and its grace in which the command should have ended


@click.command("exec", context_settings={"ignore_unknown_options": False})
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD [ARG]...")
@policy_options
@click.option("--report", type=ReportFile(), metavar="FILE", help="Write the record of the run there, as JSON.")
@click.option("--junit", type=ReportFile(), metavar="FILE", help="Write the run there as one JUnit test case.")
@json_option
@click.pass_context
def exec_command(
    ctx: click.Context,
    /,
    argv: tuple[str, ...],
    report: Report | None,
    junit: Report | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run CMD in a sandbox of its own, in the current folder.

    Output comes as it is written, stdin is passed on. The exit code is the command's own (128 + N for signal N), or
    names what ended it: 124 timeout, 137 a limit, 130 cancelled, 125 the sandbox failed, 78 refused. A first Ctrl-C or
    TERM is passed on to the command, which has the grace to end; a second one ends it.

    \b
    Example:
      hermes-sandbox exec --timeout 10 --memory 512M --pids 64 --network none -- pytest -q
      hermes-sandbox exec --timeout 5m --report run.json --junit run.xml -- make check
    """
    try:
        layer = taken_from(options)
        with supervisor(ctx) as tools:
            _pass_signals_on(tools, layer)
            result = tools.exec(argv, policy=layer, stdin=read_in(), on_output=_quiet if as_json else write_out)
    except SandboxError as error:  # nothing was started, and whoever waits for a report is told that
        result = unstarted("exec", error)
    _write_reports(result, argv, report, junit)
    if as_json:
        click.echo(result.to_json())
    elif result.error is not None:
        say(result.outcome, result.error.message, result.error.hint)
    ctx.exit(exit_code(result))


def exit_code(result: CallResult) -> int:
    """The command's own exit code where it ended by itself, else the outcome's."""
    if result.exit_code is not None:
        return result.exit_code
    if result.outcome == "crashed" and result.signal is not None:
        return 128 + result.signal
    return EXIT_CODES[result.outcome]


def _quiet(stream: str, data: bytes) -> None:
    """With --json stdout is the record; what the command wrote is in its tails."""


def _pass_signals_on(tools: Supervisor, layer: PolicyLayer) -> None:
    """INT and TERM go to the command first; after the grace, or at the second one, the call is cancelled."""
    grace = layer.grace if layer.grace is not UNSET else Policy().grace
    arrived: SimpleQueue[int] = SimpleQueue()  # its `put` may interrupt itself, which holds of little else
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: arrived.put(number))

    def escalate() -> None:
        try:
            tools.send_signal(arrived.get())
            again = _wait(arrived, grace)
            while True:  # a command whose sandbox is only starting cannot be cancelled yet
                tools.cancel()
                again = _wait(arrived, AT_ONCE if again else grace + RETRY)
        except RuntimeError:  # the supervisor is closed: it is over
            return

    threading.Thread(target=escalate, daemon=True).start()


def _wait(arrived: SimpleQueue[int], seconds: float) -> bool:
    """Whether another signal came within `seconds`."""
    try:
        arrived.get(timeout=seconds)
    except Empty:
        return False
    return True


def _write_reports(result: CallResult, argv: tuple[str, ...], report: Report | None, junit: Report | None) -> None:
    """A report that cannot be written is said; the exit code stays the command's."""
    try:
        if report is not None:
            report.write(result.to_json().encode() + b"\n")
        if junit is not None:
            from hermes_sandbox.cli.junit import test_case

            junit.write(test_case(result, argv))
    except OSError as error:
        click.echo(f"hermes-sandbox: a report cannot be written: {error.strerror}", err=True)
