"""The main job, for real, in a minute: `make run`.

Lists the tools, reads and patches a file in a scratch workspace, runs a command under limits, then runs three hostile
tools. Every line of the report comes from a CallResult. Exits with 1 if anything ended in another way than it should.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from hermes_sandbox import CallResult, Supervisor
from hermes_sandbox.bundled import bundled
from hermes_sandbox.policy import layer

HERE = Path(__file__).resolve().parent
GREETING = "def greet(name):\n    return 'Hello ' + name\n"
PATCH = """\
--- a/greet.py
+++ b/greet.py
@@ -1,2 +1,2 @@
 def greet(name):
-    return 'Hello ' + name
+    return f'Hello, {name}!'
"""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="hermes-sandbox-demo-") as folder:
        workspace = Path(folder).resolve()
        (workspace / "greet.py").write_text(GREETING, encoding="utf-8")
        tier = best_tier(workspace)
        settings = layer({"tier": tier}, "demo")
        folders = [bundled("tool_modules"), HERE / "demo_tools"]
        home = workspace / ".hermes"
        with Supervisor(workspace=workspace, home=home, tool_folders=folders, policy=settings) as tools:
            print(f"tools: {', '.join(tool.name for tool in tools.tools())}\n")
            return report(tools)


def best_tier(workspace: Path) -> str:
    """`namespaces` where it can be had. Where not, the demo says why, and goes on with less, as a user may choose."""
    with Supervisor(workspace=workspace) as tools:
        probe = tools.exec(["true"])
    if probe.outcome != "refused" or probe.error is None:
        return "namespaces"
    print(f"note: {probe.error.message}\n      going on with tier process, which contains crashes but is no sandbox\n")
    return "process"


def report(tools: Supervisor) -> int:
    limits = layer({"timeout": 2, "memory": "128M", "grace": 0.5}, "demo")
    python = "print(sum(range(10**6)))"
    steps: list[tuple[str, CallResult, str]] = [
        ("read_file greet.py", tools.call("read_file", {"path": "greet.py"}), "ok"),
        ("patch greet.py", tools.call("patch", {"mode": "patch", "patch": PATCH}), "ok"),
        ("exec python3 -c ...", tools.exec(["python3", "-c", python], policy=limits), "ok"),
        ("loop_forever", tools.call("loop_forever", policy=limits), "timeout"),
        ("take_all_memory", tools.call("take_all_memory", policy=limits), "limit"),
        ("crash", tools.call("crash", policy=limits), "crashed"),
        ("read_file greet.py", tools.call("read_file", {"path": "greet.py"}), "ok"),
    ]
    print(f"{'call':<22}{'outcome':<10}{'wall':>8}{'cpu':>8}{'peak':>9}  {'tier':<12}how")
    for name, result, _expected in steps:
        print(row(name, result))
    wrong = [name for name, result, expected in steps if result.outcome != expected]
    print(f"\nthe supervisor is alive; {len(steps)} calls, {len(wrong)} ended otherwise than expected")
    return 1 if wrong else 0


def row(name: str, result: CallResult) -> str:
    usage = result.usage
    cpu = f"{usage.cpu_s:.2f}s" if usage.cpu_s is not None else "-"
    peak = f"{usage.peak_bytes >> 20}M" if usage.peak_bytes is not None else "-"
    how = result.error.message if result.error is not None else result.stdout_tail.strip() or str(result.result)
    cost = f"{usage.wall_s:>7.2f}s{cpu:>8}{peak:>9}"
    return f"{name:<22}{result.outcome:<10}{cost}  {result.tier:<12}{how.splitlines()[0][:60]}"


if __name__ == "__main__":
    sys.exit(main())
