"""A run of `exec` as a JUnit file with one test case, as CI systems read it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from hermes_sandbox.results import CallResult

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def test_case(result: CallResult, argv: Sequence[str]) -> bytes:
    """The file's bytes. A command that ended by itself with another code than 0 is a failure; any other end but `ok` is
    an error: the test did not get to say."""
    failed = result.outcome == "ok" and result.exit_code != 0
    broken = result.outcome != "ok"
    counts = {
        "tests": "1",
        "failures": str(int(failed)),
        "errors": str(int(broken)),
        "time": f"{result.usage.wall_s:.3f}",
    }
    suite = ET.Element("testsuite", {"name": "hermes-sandbox", **counts})
    case = ET.SubElement(
        suite, "testcase", {"classname": "hermes_sandbox.exec", "name": _text(shlex.join(argv)), "time": counts["time"]}
    )
    if failed:
        ET.SubElement(case, "failure", {"message": f"exit code {result.exit_code}"})
    elif broken:
        message = result.error.message if result.error is not None else result.outcome
        ET.SubElement(case, "error", {"type": result.outcome, "message": _text(message)})
    ET.SubElement(case, "system-out").text = _text(result.stdout_tail)
    ET.SubElement(case, "system-err").text = _text(result.stderr_tail)
    document: bytes = ET.tostring(suite, encoding="utf-8", xml_declaration=True)
    return document


def _text(text: str) -> str:
    """Without the characters that XML has no way to write."""
    return _NOT_XML.sub("\ufffd", text)
