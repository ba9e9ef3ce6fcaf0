"""The wire: every message, method name, error code and size that both ends of a worker's pipes agree on.

Theory of operation
    The supervisor writes JSON-RPC 2.0 frames, one JSON object a line, to the worker's original fd 0 and reads the
    worker's frames from its original fd 1. The worker's fd 2 belongs to `init`, the worker's parent: on it init reports
    what it sees from outside the worker (captured prints, cost, how the worker ended). A tool can write what it likes
    on the worker's pipe; it cannot write on init's. Each report line begins with the session's nonce, so that whatever
    else a runner prints there (bwrap's complaints, an ssh banner) is told apart from it.

    This file is imported twice: here, where msgspec reads the classes to validate every byte that comes from a worker,
    and in the worker as `hermes_worker.wire`. There is no msgspec there, and dataclasses would cost every cold start
    17 ms: the worker needs the names alone, and builds plain dicts with `message()`, which refuses a field that the
    class does not have.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING or __name__ != "hermes_worker.wire":
    from typing import Annotated, Literal

    from msgspec import Meta
    from msgspec import Raw as Json
    from msgspec import Struct as Message

    # A worker's figures: what no machine can have is a lie that breaks arithmetic elsewhere.
    Count = Annotated[int, Meta(ge=0, le=1 << 62)]
    Seconds = Annotated[float, Meta(ge=0, le=1e12)]
    Children = Literal["kill", "keep"]
    Kind = Literal["started", "output", "match", "exited"]
else:
    Count, Seconds, Json = int, float, dict
    Children = Kind = str

    class Message:
        """Takes the options that msgspec's Struct would, and is nothing else: over there only the names are used."""

        def __init_subclass__(cls, **_options):
            pass


VERSION = 2
MAX_FRAME = 128 << 20  # bytes of one line, either way
MAX_REPORT = 8 << 20  # bytes of the line that describes or checks a module
CHUNK = 64 << 10  # bytes of one piece of output or stdin: a pipe's capacity
STDIN_WINDOW = 256 << 10  # bytes of stdin that may be on their way before the worker has to say that it took some

# Requests, supervisor to worker: each is answered by one reply with the same id.
DESCRIBE = "describe"
CHECK = "check"
CALL = "call"
EXEC = "exec"
# Notifications, supervisor to worker.
STDIN = "stdin"
SIGNAL = "signal"
CANCEL = "cancel"
BYE = "bye"
# Notifications, worker to supervisor.
HELLO = "hello"
OUTPUT = "output"
CREDIT = "credit"
LOG = "log"
EVENT = "event"
# Reports, init to supervisor.
PRINTED = "printed"
DRAINED = "drained"
SPENT = "spent"
ENDED = "ended"

# Error codes of replies, in JSON-RPC's range for servers.
TOOL_RAISED = -32001
BAD_RESULT = -32002
RESULT_TOO_LARGE = -32003
WAS_CANCELLED = -32004
LOAD_FAILED = -32005
NOT_STARTED = -32006
METHOD_NOT_FOUND = -32601


class Boot(Message, frozen=True):
    """What init must know before it starts the worker. Sent after the zip, not as a frame; None is no limit.

    `memory` and `cpu_watch` are only set where no cgroup does the work: then init watches the tree.
    """

    nonce: str
    pid_namespace: bool = False
    seccomp: bool = False
    cwd: str = "/"
    env: dict[str, str] = {}  # noqa: RUF012 - msgspec makes a new one for each message
    packages: list[str] = []  # noqa: RUF012
    memory: int | None = None
    memory_data: int | None = None
    cpu_watch: bool = False
    tmpfs: list[str] = []  # noqa: RUF012 - folders that are memory, for the watch
    pids: int | None = None
    file_size: int | None = None
    open_files: int | None = None


class Describe(Message, frozen=True):
    module: str


class Check(Message, frozen=True):
    module: str


class Call(Message, frozen=True):
    """`context` becomes keyword arguments of the handler. `timeout`, `grace` and `cpu_time` in s, `result_limit` in
    bytes of UTF-8. `stays`: the worker lives on after this call; `children`: what becomes of what it leaves running."""

    module: str
    tool: str
    args: dict[str, object]
    context: dict[str, object]
    result_limit: int
    timeout: float
    grace: float
    stays: bool = False
    children: Children = "kill"
    cpu_time: float | None = None


class Exec(Message, frozen=True):
    argv: list[str]
    cwd: str
    env: dict[str, str]
    cpu_time: float | None = None


class Stdin(Message, frozen=True):
    id: int
    data: bytes = b""
    eof: bool = False


class Signal(Message, frozen=True):
    id: int
    signal: int


class Cancel(Message, frozen=True):
    """Stop request `id`: TERM what it started, KILL what is left after `grace` s, then answer."""

    id: int
    grace: float


class Bye(Message, frozen=True):
    pass


class Hello(Message, frozen=True):
    wire: int
    nonce: str
    python: str
    uid: int


class Output(Message, frozen=True):
    """A piece of what a command of `exec` wrote, or a program that a tool runs. `data` is base64 on the wire; `skipped`
    bytes of the stream came before it and are not sent."""

    id: int
    stream: str
    data: bytes
    skipped: Count = 0


class Credit(Message, frozen=True):
    id: int
    bytes: int


class Log(Message, frozen=True):
    level: int
    name: str
    message: str


class Event(Message, frozen=True):
    """News of a background program: its start (`text`: the command), what it printed, a line that matched (and how many
    more did), or its end. `notify`: whoever started it wants to be told."""

    session_id: str
    kind: Kind
    text: str = ""
    more: Count = 0
    code: Count | None = None
    signal: Count | None = None
    timed_out: bool = False
    notify: bool = False


class Cost(Message, frozen=True):
    """What a request cost in the worker and the children that it waited for, by getrusage."""

    cpu_s: Seconds
    peak_bytes: Count


class CallDone(Message, frozen=True):
    """`text` or `multimodal`. `mark`: init reports DRAINED with it behind the last print of this call; 0: no print.
    `leftovers`: processes that the call had left running and that were ended. `code` or `signal`: how the last program
    ended that it ran in front."""

    cost: Cost
    text: str | None = None
    multimodal: Json = Json()  # empty: none
    mark: Count = 0
    leftovers: Count = 0
    code: Count | None = None
    signal: Count | None = None


class ExecDone(Message, frozen=True):
    cost: Cost
    code: Count | None = None
    signal: Count | None = None
    leftovers: Count = 0


class DescribeDone(Message, frozen=True):
    """One dict for each `registry.register` of the module (see `tools_shim`), or why it did not load."""

    registrations: list[dict[str, object]]
    problem: str = ""


class ToolState(Message, frozen=True):
    """What a tool's check_fn and dynamic_schema_overrides said just now."""

    name: str
    available: bool
    reason: str = ""
    overrides: dict[str, object] | None = None


class CheckDone(Message, frozen=True):
    tools: list[ToolState]
    problem: str = ""


class Trouble(Message, frozen=True):
    """`data` of an error reply. `kind` is the exception's class name, `errno` its number if it is an OSError."""

    kind: str = ""
    errno: Count | None = None
    trace: str = ""
    size: Count | None = None
    cost: Cost | None = None
    mark: Count = 0
    leftovers: Count = 0


class Printed(Message, frozen=True):
    stream: str
    data: bytes


class Drained(Message, frozen=True):
    mark: Count


class Spent(Message, frozen=True):
    """What the whole tree has used so far: CPU s, resident bytes that are not shared, processes."""

    cpu_s: Seconds
    bytes: Count
    pids: Count


class Ended(Message, frozen=True):
    """How the worker ended, sent when every process of the sandbox but init is dead and reaped.
    `limit`: "memory" if init's watch ended it."""

    code: Count | None = None
    signal: Count | None = None
    cpu_s: Seconds = 0.0
    peak_bytes: Count = 0
    killed: Count = 0
    limit: str = ""
    observed: Count = 0


def message(cls, **fields):
    """The dict of a message, for the worker's side: refuses a field that `cls` does not declare."""
    if not fields.keys() <= cls.__annotations__.keys():
        unknown = sorted(fields.keys() - cls.__annotations__.keys())
        raise TypeError("%s has no field %s" % (cls.__name__, ", ".join(unknown)))
    return fields
