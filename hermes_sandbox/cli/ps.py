"""`hermes-sandbox ps`: the workers of this user's supervisors, and what runs in their background."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import click
import msgspec

from hermes_sandbox import presence, runners
from hermes_sandbox.cli.options import json_option
from hermes_sandbox.policy import format_value
from hermes_sandbox.presence import SupervisorRow, WorkerRow


@click.command("ps")
@click.option("--runner", metavar="NAME", help="Only the workers of this runner.")
@click.option("--sweep", is_flag=True, help="Remove what supervisors left that are dead, and say how much that was.")
@json_option
def ps_command(runner: str | None, sweep: bool, as_json: bool) -> None:
    """List the workers that are alive on this machine, with their background commands.

    \b
    Example:
      hermes-sandbox ps
      hermes-sandbox ps --sweep
    """
    if runner is not None:
        runners.load(runner)  # says which there are
    if sweep:
        removed = asyncio.run(_sweep([runner] if runner is not None else runners.available()))
        if as_json:
            click.echo(msgspec.json.encode({"removed": removed}))
        else:
            click.echo(f"removed {removed} thing(s) that dead supervisors had left")
        return
    found = [_chosen(row, runner) for row in presence.supervisors()]
    if as_json:
        rows = [{**msgspec.to_builtins(row), "workers": [_measured(each) for each in row.workers]} for row in found]
        click.echo(msgspec.json.encode(rows))
        return
    for row in found:
        for worker in row.workers:
            _print(row, worker)


async def _sweep(names: list[str]) -> int:
    removed = 0
    for name in names:
        runner = runners.load(name)()
        try:
            removed += runner.sweep()
        finally:
            await runner.close()
    return removed


def _chosen(row: SupervisorRow, runner: str | None) -> SupervisorRow:
    return SupervisorRow(pid=row.pid, workers=[each for each in row.workers if runner in (None, each.runner)])


def _measured(worker: WorkerRow) -> dict[str, Any]:
    """The row with what its processes have in memory, in bytes, and how many there are."""
    import psutil

    count = memory = 0
    try:
        first = psutil.Process(worker.pid)
        for process in (first, *first.children(recursive=True)):
            try:
                memory += process.memory_full_info().pss  # what processes share counts once
                count += 1
            except psutil.Error:  # it ended while we looked
                continue
    except psutil.Error:
        pass
    return {**msgspec.to_builtins(worker), "processes": count, "memory": memory}


def _print(row: SupervisorRow, worker: WorkerRow) -> None:
    seen = _measured(worker)
    memory = format_value("memory", seen["memory"]) if seen["memory"] else "gone"
    click.echo(
        f"{worker.pid}  supervisor {row.pid}  {worker.runner}/{worker.tier}  task {worker.task_id or '-'}  "
        f"{worker.tools}  {_age(worker.started)}  {seen['processes']} process(es), {memory}"
    )
    for each in worker.background:
        click.echo(f"    {each.session_id}  {_age(each.started)}  {' '.join(each.command.split())[:80]}")


def _age(since: float) -> str:
    seconds = max(0, int(time.time() - since))
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
