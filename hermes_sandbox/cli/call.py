"""`hermes-sandbox call TOOL`: run a tool, print its result alone, end with the exit code of its outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from hermes_sandbox.cli import MAX_TALK, say
from hermes_sandbox.cli.options import json_option, policy_options, supervisor, taken_from, unstarted
from hermes_sandbox.errors import InvalidArguments, SandboxError
from hermes_sandbox.results import CallResult
from hermes_sandbox.text import clean


@click.command("call")
@click.argument("tool")
@click.argument("pairs", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--args", "text", metavar="JSON|@FILE|-", help="The arguments as JSON, from a file, or from stdin.")
@policy_options
@json_option
@click.pass_context
def call_command(
    ctx: click.Context, /, tool: str, pairs: tuple[str, ...], text: str | None, as_json: bool, **options: Any
) -> None:
    """Run TOOL and print its result.

    A tool's policy is the default and its ceiling the most that the options below can ask for. The workspace is the
    current folder.

    \b
    Example:
      hermes-sandbox call read_file path=README.md
      hermes-sandbox call search_files --args '{"pattern": "TODO", "limit": 5}' --timeout 5 --memory 256M --json
    """
    try:
        layer = msgspec.structs.replace(taken_from(options), reuse="never")  # nothing of it outlives the command
        arguments = _arguments(text, pairs)
        with supervisor(ctx) as tools:
            result = tools.call(tool, arguments, policy=layer)
    except SandboxError as error:
        result = unstarted(tool, error)
    if as_json:
        click.echo(result.to_json())
    else:
        _print(result)
    ctx.exit(result.cli_exit_code)


def _arguments(text: str | None, pairs: tuple[str, ...]) -> dict[str, Any]:
    """`--args` with NAME=VALUE over it. Raises InvalidArguments that says what is wrong with which."""
    found: Any = {}
    if text is not None:
        found = _decode(_source(text))
    if not isinstance(found, dict):
        raise InvalidArguments("--args is no JSON object", hint='write --args \'{"name": "value"}\'')
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidArguments(f"{pair!r} is not NAME=VALUE", hint="write path=README.md, or use --args for JSON")
        found[name] = value
    return found


def _source(text: str) -> bytes:
    if text == "-":
        try:
            with open(0, "rb", closefd=False) as stdin:
                return stdin.read()
        except OSError as error:
            raise InvalidArguments(f"--args -: stdin cannot be read: {error.strerror}") from None
    if not text.startswith("@"):
        try:
            return text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise InvalidArguments("--args holds half a character", hint="write UTF-8") from None
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise InvalidArguments(
            f"--args {text}: {error.strerror}", hint="write @ and the path of a file with JSON in it"
        ) from None


def _decode(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InvalidArguments(f"--args is no JSON: {error}", hint='write --args \'{"name": "value"}\'') from None


def _print(result: CallResult) -> None:
    if isinstance(result.result, str):
        click.echo(result.result)
    elif result.result is not None:
        click.echo(msgspec.json.encode(result.result))
    if result.error is not None and (result.result is None or result.outcome != "tool_error"):
        say(result.outcome, result.error.message, result.error.hint)
    for note in result.notes:
        click.echo(f"  {clean(note, MAX_TALK)}", err=True)
    if result.result is None and (tail := result.stderr_tail.strip() or result.stdout_tail.strip()):
        click.echo(clean(tail[-2000:], 2000), err=True)
