"""A sandbox of its own for one call, in a supervisor that is there, and as a whole process of the command line."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import floor
from measure import ARGUMENTS, STARTS, TOOLS, Figure, in_turns, must, place, supervisor, timed

REST = 0.05  # s in which a sandbox that has answered is taken down
IMPORTS_IS = 'python3 -c "import msgspec, click" + one bare bwrap'


def cold() -> Iterator[Figure]:
    """From nothing to the answer, and the sandbox gone again. The floor imports what the tool imports."""
    for tool, code in (("echo", "pass"), ("occasion", imports_of("occasion"))):
        samples, base = asyncio.run(_cold(tool, code))
        what = floor.BWRAP_IS if code == "pass" else floor.BWRAP_IS.replace("pass", '"(its 20 imports)"')
        yield timed(f"cold_sandbox.{tool}", samples, base, what, lambda b: 2 * b)


async def _cold(tool: str, code: str) -> tuple[list[float], list[float]]:
    async with supervisor(reuse="never") as opened:
        with place() as where:
            bare = floor.Sandbox(where["workspace"], code)

            async def ours() -> None:
                must(await opened.call(f"bench_{tool}", ARGUMENTS[tool]))

            await in_turns(3, ours, bare)
            return await in_turns(STARTS, ours, bare, REST)


def imports_of(tool: str) -> str:
    lines = (TOOLS / f"{tool}.py").read_text(encoding="utf-8").splitlines()
    return "; ".join(line for line in lines if line.startswith("import "))


def command_line() -> Iterator[Figure]:
    """`hermes-sandbox call`, from the start of its process to its end. The tools are in the user's folder, described
    before."""
    if importlib.util.find_spec("hermes_sandbox.cli") is None:
        print("command_line: hermes_sandbox.cli is not there; figure left out", file=sys.stderr)
        return
    with place() as where:
        tools = where["home"] / "tools"
        tools.mkdir()
        for tool in ARGUMENTS:
            (tools / f"{tool}.py").write_bytes((TOOLS / f"{tool}.py").read_bytes())
        env = {**os.environ, "HERMES_HOME": str(where["home"])}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its compiled files
        bare = floor.Sandbox(where["workspace"])
        for tool in ARGUMENTS:
            command = [*_program(), "call", f"bench_{tool}", f"text={ARGUMENTS[tool]['text']}"]

            def run(argv: list[str], env: dict[str, str] = env, cwd: Path = where["workspace"]) -> None:
                subprocess.run(argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)

            async def ours(command: list[str] = command, run: Any = run) -> None:
                run(command)

            def base(run: Any = run) -> None:
                run([sys.executable, "-c", "import msgspec, click"])
                bare()

            asyncio.run(in_turns(2, ours, base))
            samples, floors = asyncio.run(in_turns(STARTS, ours, base, REST))
            yield timed(f"command_line.call.{tool}", samples, floors, IMPORTS_IS, lambda b: 2.5 * b)


def _program() -> list[str]:
    """The installed command beside this interpreter, else the package as it lies here."""
    script = Path(sys.executable).with_name("hermes-sandbox")
    return [str(script)] if script.exists() else [sys.executable, "-m", "hermes_sandbox"]
