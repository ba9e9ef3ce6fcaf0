"""Ships the worker: the stub that starts it everywhere, and the zip that the stub reads from its stdin.

The stub is a `-c` argument, so nothing has to be installed on the other side and no runner has a way of its own. It
reads two lengths, the zip and the boot settings, and not a byte more: what follows is the worker's. Files of the worker
travel as source; to an interpreter of our own version they travel compiled, which saves a cold start some 40 ms.
"""

from __future__ import annotations

import functools
import io
import marshal
import zipfile
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import msgspec

from hermes_sandbox.worker import wire

_WORKER = Path(wire.__file__).parent
_PACKAGE = "hermes_worker"
TOOLS_FOLDER = "tools"  # where tool files lie in the zip

STUB = """\
import os,sys
def r(n):
 b=b""
 while len(b)<n:
  c=os.read(0,n-len(b))
  if not c:os._exit(3)
  b+=c
 return b
n=int(r(10));m=int(r(10));z=r(n);c=r(m)
try:f=os.memfd_create("worker")
except AttributeError:f=os.open(os.environ.get("TMPDIR","/tmp"),os.O_TMPFILE|os.O_RDWR)
while z:z=z[os.write(f,z):]
sys.path.insert(0,"/proc/self/fd/%d"%f)
from hermes_worker import init
init.main(c)
"""
INTERPRETER_FLAGS = ("-I", "-S", "-u", "-c")


def command(python: str) -> list[str]:
    """The argv that starts a worker with the interpreter `python`."""
    return [python, *INTERPRETER_FLAGS, STUB]


def payload(boot: wire.Boot, tool_files: Mapping[str, bytes], *, same_python: bool) -> bytes:
    """The bytes that the stub reads first. `tool_files` maps a path below `tools/` to the text that travels there.

    `same_python`: the other side runs our own Python version, so compiled code of the worker's files is what travels.
    """
    settings = msgspec.json.encode(boot)
    buffer = io.BytesIO(_worker_archive(same_python))
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for name, text in sorted(tool_files.items()):
            archive.writestr(zipfile.ZipInfo(f"{TOOLS_FOLDER}/{name}"), text)
    files = buffer.getvalue()
    return b"%010d%010d" % (len(files), len(settings)) + files + settings


@functools.cache
def _worker_archive(same_python: bool) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(_WORKER.glob("*.py")):
            if same_python:
                archive.writestr(zipfile.ZipInfo(f"{_PACKAGE}/{path.stem}.pyc"), _compiled(path))
            else:
                archive.writestr(zipfile.ZipInfo(f"{_PACKAGE}/{path.name}"), path.read_bytes())
    return buffer.getvalue()


def _compiled(path: Path) -> bytes:
    """The file's code as a .pyc that is never checked against its source. Python's own cache saves the compiling."""
    name = f"{_PACKAGE}.{path.stem}"
    code = SourceFileLoader(name, str(path)).get_code(name)
    unchecked = (0b01).to_bytes(4, "little") + bytes(8)  # PEP 552: hash-based, not to be validated
    return MAGIC_NUMBER + unchecked + marshal.dumps(code)
