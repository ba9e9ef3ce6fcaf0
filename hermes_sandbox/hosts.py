"""The hosts that a policy's `network` may name, how they are written, and which of them grants which.

    api.example.org          that name, on every port
    api.example.org:443      that name, on one port
    *.example.org            every name below it, at any depth, and not itself; a port may follow
    test=127.0.0.1:9000      a name that leads to this address and port, and nowhere else: the one way to name an
                             address, since a name that leads to a private one is never followed

Names are ASCII: one that is not is written as its DNS form, xn--... An address, or what some resolvers read as one
("127.1", "0x7f000001"), is no name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

MAX_NAME = 253
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # as the last label it makes an address of the whole


def parse_network(value: object) -> str | tuple[str, ...]:
    """ "none", "host", or hosts in their one way of being written. Raises ValueError with what to write instead."""
    if value in ("none", "host"):
        return str(value)
    if not isinstance(value, list | tuple):
        raise ValueError('write "none", "host", or a list of hosts such as ["api.example.org:443", "*.example.net"]')
    return tuple(dict.fromkeys(map(_item, value))) or "none"


def exceeds(asked: str | Sequence[str], most: str | Sequence[str]) -> bool:
    """Whether `asked` reaches more than `most`: nothing is less than hosts, and hosts are less than all."""
    if asked == "none" or most == "host":
        return False
    return asked == "host" or most == "none" or not all(grants(most, item) for item in asked)


def lowered(value: str | Sequence[str], most: str | Sequence[str]) -> str | tuple[str, ...]:
    """As much of `value` as `most` allows."""
    if not exceeds(value, most):
        return _kept(value)
    if value == "host" or most == "none":
        return _kept(most)
    return tuple(item for item in value if grants(most, item)) or "none"


def grants(granted: Iterable[str], item: str) -> bool:
    """Whether one of `granted` allows all of `item`."""
    return any(_covers(each, item) for each in granted)


def _kept(value: str | Sequence[str]) -> str | tuple[str, ...]:
    return value if isinstance(value, str) else tuple(value)


def _covers(granted: str, item: str) -> bool:
    if granted == item:
        return True
    if "=" in granted or "=" in item:  # an address is granted by nothing but itself
        return False
    name, _, port = granted.partition(":")
    asked, _, asked_port = item.partition(":")
    if port not in ("", asked_port):
        return False
    return name == asked or (name.startswith("*.") and asked.endswith(name[1:]))


def _item(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{_short(value)} is no host: write a text, such as api.example.org:443")
    if value in ("none", "host"):
        raise ValueError(f'"{value}" is no host: write it alone, without a list')
    text = value.lower()
    if "=" in text:
        name, _, address = text.partition("=")
        return f"{_name(name, value)}={_address(address, value)}"
    name, colon, port = text.partition(":")
    star = "*." if name.startswith("*.") else ""
    return star + _name(name.removeprefix("*."), value) + (f":{_port(port, value)}" if colon else "")


def _name(name: str, whole: str) -> str:
    if "*" in name:
        raise ValueError(f'{_short(whole)}: a star stands for whole names, as in "*.example.org"')
    if "/" in whole:
        raise ValueError(f"{_short(whole)} is no host: write its name alone, such as api.example.org:443")
    if not whole.isascii():
        raise ValueError(f"{_short(whole)} is not ASCII: write the name's DNS form, xn--...")
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(f"{_short(whole)} is no host: write it like api.example.org, api.example.org:443 or *.a.org")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        raise ValueError(f"{_short(whole)} is an address: give it a name, as in test=127.0.0.1:9000")
    return name


def _port(port: str, whole: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,4}", port) or int(port) > 65535:
        raise ValueError(f"{_short(whole)}: a port is a number from 1 to 65535, as in api.example.org:443")
    return int(port)


def _address(text: str, whole: str) -> str:
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        address = None
    if not colon or address is None or bracketed != (address.version == 6) or "%" in host:
        raise ValueError(f"{_short(whole)}: write name=address:port, as in test=127.0.0.1:9000 or test=[::1]:9000")
    return f"[{address}]:{_port(port, whole)}" if bracketed else f"{address}:{_port(port, whole)}"


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
