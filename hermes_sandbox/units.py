"""The units that a policy is written in: times in seconds, sizes in bytes, counts, numbers of CPUs; read, and shown.

Each reader raises ValueError with what to write instead. What is shown can be read again.
"""

from __future__ import annotations

import re

MOST = 1 << 62  # of any size or count: what the kernel, and JSON, can hold
LEAST_CPUS, MOST_CPUS = 0.1, 65536.0
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TIMES = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_size(value: object) -> int:
    """Bytes. Raises ValueError with what to write instead."""
    if isinstance(value, str) and (
        found := re.fullmatch(r"([0-9]{1,18})(\.[0-9]{1,6})?\s*([KMGT]?)(?:i?B)?", value.strip(), re.IGNORECASE)
    ):
        unit = _SIZES[found[3].upper()]
        value = int(found[1]) * unit + int(float(found[2] or 0) * unit)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < MOST:
        raise ValueError('write a size in bytes above 0, such as 1048576, "64K", "256M" or "2G"')
    return value


def parse_seconds(value: object) -> float:
    """Seconds. Raises ValueError with what to write instead."""
    if isinstance(value, str) and (
        found := re.fullmatch(r"([0-9]{1,10}(?:\.[0-9]{1,10})?)\s*(ms|s|m|h|)", value.strip())
    ):
        value = float(found[1]) * _TIMES[found[2]]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise ValueError('write seconds above 0, such as 5, 2.5, "90s", "5m" or "1h"')
    return float(value)


def parse_count(value: object) -> int:
    """A whole number above 0. Raises ValueError with what to write instead."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < MOST:
        raise ValueError("write a whole number above 0")
    return value


def parse_cpus(value: object) -> float:
    """How many CPUs' worth of time; fractions are fine. Raises ValueError with what to write instead."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,6})?", value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST_CPUS <= value <= MOST_CPUS:
        raise ValueError("write a number of CPUs, such as 2, 1.5 or 0.5; the least is 0.1")
    return float(value)


def show_size(value: int) -> str:
    for unit in ("T", "G", "M", "K"):
        if value >= _SIZES[unit]:
            return f"{value / _SIZES[unit]:.4g}{unit}"
    return str(value)


def show_seconds(value: float) -> str:
    return f"{value:g}s"
