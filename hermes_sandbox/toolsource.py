"""What the text of a tool file says of it, without running it: for those who write one.

Only what is plain is told. A handler is looked at when `register` is given a function of the file, or a lambda, and a
return when what it returns is written there: what comes out of a call may be anything. A lambda that does nothing but
call a function of the file is looked at together with that function.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from hermes_sandbox.environment import BASE_ENV
from hermes_sandbox.findings import Finding, Status

OLDEST = (3, 9)  # the oldest Python that a worker may run on
OURS = ("tools", "hermes_constants")  # what a worker has beside the standard library
ALWAYS_SET = {*BASE_ENV, "HOME", "TMPDIR"}
Complaint = tuple[Status, str, str]  # of a handler: how bad it is, what it is, what to do
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_NOT_TEXT = {
    ast.Dict: "a dict",
    ast.DictComp: "a dict",
    ast.List: "a list",
    ast.ListComp: "a list",
    ast.Tuple: "a tuple",
    ast.Set: "a set",
    ast.SetComp: "a set",
    ast.GeneratorExp: "a generator",
    ast.Compare: "a bool",
}


class Source:
    """A file that is known to parse. `siblings`: the names of the files beside it."""

    def __init__(self, text: bytes, siblings: Collection[str]) -> None:
        self._text = text
        self._siblings = siblings
        with warnings.catch_warnings(action="ignore"):
            self._tree = ast.parse(text)
        nodes = list(ast.walk(self._tree))
        self._functions = {
            node.name: node for node in self._tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        self._imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        self._calls = [node for node in nodes if isinstance(node, ast.Call)]
        self._lookups = [node for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)]
        self._registering = [call for call in self._calls if _is_register(call)]

    # Registering --------------------------------------------------------------------------------------------------

    def registering(self) -> Iterator[Finding]:
        at_top = [node.value for node in self._tree.body if isinstance(node, ast.Expr)]
        if not any(isinstance(node, ast.Call) and _is_register(node, "registry") for node in at_top):
            message = "no line at the top level is registry.register(...): it is found here, but not by Hermes itself"
            yield Finding(
                "file", "register", "warn", message, "write it without an if, a loop or another name around it"
            )
        else:
            yield Finding("file", "register", "ok", "registers at the top level")
        names = Counter(name for call in self._registering if (name := _tool_name(call)))
        for name in [name for name, count in names.items() if count > 1]:
            yield Finding("tool", name, "warn", "is registered more than once: the last one counts")

    # Handlers -----------------------------------------------------------------------------------------------------

    def handlers(self) -> Iterator[Finding]:
        for call in self._registering:
            handler = self._function(_argument(call, "handler", 3))
            if handler is None:
                continue
            name = _tool_name(call) or getattr(handler, "name", "?")
            wrong = [*_signature(handler.args), *self._returns(handler)]
            yield from (Finding("tool", name, *each) for each in wrong)
            if not wrong:
                yield Finding(
                    "tool", name, "ok", "its handler takes (args, **kw), and returns nothing that is no string"
                )

    def _function(self, node: ast.expr | None) -> Function | None:
        """What a name stands for, if that is a function of the file which no decorator changes."""
        if isinstance(node, ast.Lambda):
            return node
        found = self._functions.get(node.id) if isinstance(node, ast.Name) else None
        return found if found is not None and not found.decorator_list else None

    def _returns(self, handler: Function) -> Iterator[Complaint]:
        function: Function | None = handler
        if isinstance(handler, ast.Lambda) and isinstance(handler.body, ast.Call):
            function = self._function(handler.body.func)
        if function is None:
            return
        if kinds := list(_returned(function)):
            said = ", ".join(f"{kind} (line {line})" for line, kind in kinds)
            yield (
                "FAIL",
                f"its handler returns {said}",
                "return a string: tool_result(...) and tool_error(...) make one",
            )

    # What it needs ------------------------------------------------------------------------------------------------

    def imports(self, packages: Sequence[str]) -> Iterator[Finding]:
        """`packages`: what the policy of its tools adds to the standard library."""
        modules = sorted({name for node in self._imports for name in _modules(node)})
        lost = [name for name in modules if name.startswith("tools.") and not self._is_sibling(name)]
        tops = {name.split(".")[0] for name in modules} - {""}
        foreign = sorted(tops - sys.stdlib_module_names - set(OURS))
        for name in lost:
            yield Finding("file", "imports", "warn", f"{name} is no file beside it", "put it there, or do without")
        if foreign and not packages:
            hint = (
                'grant them with packages = "host", or a list of folders, in the policy; import them in the handler, '
                "since a file is described with the packages of [defaults] alone"
            )
            yield Finding("file", "imports", "warn", f"a worker does not have {', '.join(foreign)}", hint)
        elif foreign:
            yield Finding("file", "imports", "ok", f"{', '.join(foreign)}: from packages = {', '.join(packages)}")
        if not foreign and not lost:
            yield Finding("file", "imports", "ok", "nothing but the standard library and files beside it")

    def _is_sibling(self, name: str) -> bool:
        return name.split(".")[1] in {"registry", *self._siblings}

    def environment(self, asked: Collection[str]) -> Iterator[Finding]:
        """`asked`: what its tools ask for in requires_env."""
        read = {_literal(call.args[0]) for call in self._calls if _reads_environment(call.func) and call.args}
        read |= {_literal(node.slice) for node in self._lookups if _dotted(node.value).endswith("environ")}
        if unasked := sorted(read - {""} - ALWAYS_SET - set(asked)):
            message = f"reads {', '.join(unasked)}, which no tool asks for: nobody is told of what is wanted"
            yield Finding("file", "environment", "warn", message, f"register with requires_env={unasked}")

    def age(self) -> Iterator[Finding]:
        shown = ".".join(map(str, OLDEST))
        try:
            with warnings.catch_warnings(action="ignore"):
                ast.parse(self._text, feature_version=OLDEST)
        except SyntaxError as error:
            message = f"line {error.lineno} needs a Python after {shown}: {error.msg}"
            yield Finding(
                "file", "python", "warn", message, "a runner elsewhere may have an older one than this machine"
            )
        else:
            yield Finding("file", "python", "ok", f"Python {shown} can read it")


def _dotted(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _is_register(call: ast.Call, owner: str = "") -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr != "register":
        return False
    return not owner or _dotted(function.value) == owner


def _argument(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """What a call gives for a parameter, by name or by place."""
    by_name = next((word.value for word in call.keywords if word.arg == name), None)
    return by_name or (call.args[place] if len(call.args) > place else None)


def _tool_name(call: ast.Call) -> str:
    name = _argument(call, "name", 0)
    return _literal(name) if name is not None else ""


def _literal(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _signature(arguments: ast.arguments) -> Iterator[Complaint]:
    """A handler is called with the tool's arguments as one dict, task_id, and what else the agent passes by name."""
    places = [*arguments.posonlyargs, *arguments.args]
    if not places and arguments.vararg is None:
        yield "FAIL", "its handler takes no arguments", "write it as handler(args, **kw)"
    required = places[1 : len(places) - len(arguments.defaults)]
    required += [
        word for word, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
    ]
    if missing := [word.arg for word in required if word.arg != "task_id"]:
        yield "FAIL", f"its handler wants {', '.join(missing)}, which a call does not give", "take them out of args"
    if arguments.kwarg is None:
        names = {word.arg for word in (*places[1:], *arguments.kwonlyargs)}
        if "task_id" in names:
            yield "warn", "its handler takes no **kw: whatever else an agent passes ends the call", "add **kw"
        else:
            yield "FAIL", "its handler takes no **kw, and every call passes task_id", "write it as handler(args, **kw)"


def _returned(function: Function) -> Iterator[tuple[int, str]]:
    """Line and kind of what it plainly returns that is no text."""
    if isinstance(function, ast.Lambda):
        yield from _not_text(function.body)
        return
    own = list(_own_nodes(function))
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own):
        yield function.lineno, "a generator"
        return
    returns = [node for node in own if isinstance(node, ast.Return)]
    if not returns and not isinstance(function.body[-1], ast.Raise | ast.While | ast.Try | ast.With):
        yield function.lineno, "None"
    for node in returns:
        yield from _not_text(node.value) if node.value is not None else [(node.lineno, "None")]


def _own_nodes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions and classes in it."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop(0)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield node
            todo += ast.iter_child_nodes(node)


def _not_text(node: ast.expr) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.IfExp):
        yield from _not_text(node.body)
        yield from _not_text(node.orelse)
    elif isinstance(node, ast.Constant) and not isinstance(node.value, str):
        yield node.lineno, type(node.value).__name__ if node.value is not None else "None"
    elif type(node) in _NOT_TEXT and not _is_multimodal(node):
        yield node.lineno, _NOT_TEXT[type(node)]


def _is_multimodal(node: ast.expr) -> bool:
    """{"_multimodal": ...} is the one dict that passes; one that takes others in may be it."""
    return isinstance(node, ast.Dict) and any(key is None or _literal(key) == "_multimodal" for key in node.keys)


def _modules(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Absolute names of what is imported, for a file that lies in `tools`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        base = f"tools.{base}" if base else "tools"
    yield from (f"tools.{alias.name}" for alias in node.names) if base == "tools" else [base]


def _reads_environment(function: ast.expr) -> bool:
    return _dotted(function).endswith(("environ.get", "getenv"))
