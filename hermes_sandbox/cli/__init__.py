"""The command line. One file per command group; a command's file is loaded when the command is used.

stdout is data, stderr is talk. A SandboxError that reaches this file becomes one line on stderr and its exit code; exit
code 2 is click's own, for a command line that is wrong.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

import click

from hermes_sandbox.text import clean

MAX_TALK = 4000  # characters of a line of talk

COMMANDS = {
    "call": "Run a tool.",
    "exec": "Run a command in a sandbox of its own.",
    "doctor": "Say what works here, what does not, and what to do about it.",
    "ps": "List the workers that are alive, or sweep up after dead ones.",
    "tools": "Show the tools, switch them on and off, check a file.",
    "toolsets": "Show the toolsets.",
}


class Commands(click.Group):
    """Knows the commands by name and loads each from the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"{__name__}.{cmd_name}"), f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.UsageError(f"no such command: {args[0]}. The commands are: {', '.join(COMMANDS)}") from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))  # without loading them: --help is fast

    def invoke(self, ctx: click.Context) -> Any:
        from hermes_sandbox.errors import Cancelled, SandboxError

        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if error.option_name not in ("--profile", "--tools"):
                raise
            raise click.UsageError(f"write {error.option_name} before the command", ctx=error.ctx) from None
        except (KeyboardInterrupt, click.Abort):  # what ran has been ended by now; or at a question of ours
            failure: SandboxError = Cancelled("interrupted")
        except SandboxError as error:
            failure = error
        say(failure.outcome, failure.message, failure.hint)
        return ctx.exit(failure.exit_code)


def say(outcome: str, message: str, hint: str = "") -> None:
    """One line of talk, with a hint below it where there is one."""
    click.echo(f"hermes-sandbox: {outcome}: {clean(message, MAX_TALK)}", err=True)
    if hint:
        click.echo(f"  {clean(hint, MAX_TALK)}", err=True)


def open_missing_streams() -> None:
    """Have something at descriptors 0 to 2 that were closed: what is opened next would be taken for them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--profile", metavar="NAME", help="Use the files of HERMES_HOME/profiles/NAME.")
@click.option("--tools", "filter_", metavar="NAMES", help="Use only these toolsets and tools, separated by commas.")
@click.option("--json", "as_json", is_flag=True, help="Print data as JSON, whatever the command.")
@click.option("-v", "--verbose", count=True, help="Say more on stderr; twice for everything.")
@click.version_option(package_name="hermes-sandbox")
@click.pass_context
def main(ctx: click.Context, profile: str | None, filter_: str | None, as_json: bool, verbose: int) -> None:
    """Tools for agents, each call in a sandbox of its own: limits, deadlines, and a name for every end.

    \b
    Example:
      hermes-sandbox call read_file path=README.md
      hermes-sandbox exec --timeout 10 --memory 512M -- pytest -q
    """
    open_missing_streams()
    if verbose:
        logging.basicConfig(level=logging.INFO if verbose == 1 else logging.DEBUG, format="%(name)s: %(message)s")
    names = [name.strip() for name in filter_.split(",") if name.strip()] if filter_ is not None else None
    ctx.obj = {"profile": profile, "filter": names, "json": as_json}
