"""Units: what is read, what is refused, and that what is shown can be read again."""

from __future__ import annotations

import pytest

from hermes_sandbox.units import (
    parse_count,
    parse_cpus,
    parse_seconds,
    parse_size,
    show_seconds,
    show_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        ("1", 1),
        ("64K", 65536),
        ("64k", 65536),
        ("1.5M", 1572864),
        ("2G", 2 << 30),
        ("2 GiB", 2 << 30),
        ("1T", 1 << 40),
        (" 7MB ", 7 << 20),
    ],
)
def test_sizes_are_powers_of_1024(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "bad",
    [0, -1, True, 1.5, None, "", "M", "-1M", "1X", "1e3", "0", "0.1", [], "1M extra", "M1", "9" * 400, 1 << 62, "٣"],
)
def test_what_is_no_size(bad: object) -> None:
    with pytest.raises(ValueError, match='such as 1048576, "64K"'):
        parse_size(bad)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(5, 5.0), (0.5, 0.5), ("5", 5.0), ("90s", 90.0), ("250ms", 0.25), ("1.5m", 90.0), ("1h", 3600.0), (" 2 s ", 2.0)],
)
def test_times_are_seconds(text: object, seconds: float) -> None:
    found = parse_seconds(text)
    assert (found, type(found)) == (seconds, float)


@pytest.mark.parametrize(
    "bad",
    [
        0,
        -1,
        True,
        None,
        "",
        "s",
        "5d",
        "5 minutes",
        "-5",
        "1e3",
        float("nan"),
        float("inf"),
        1e9,
        10**400,
        "9" * 400,
        [],
        "0s",
    ],
)
def test_what_is_no_time(bad: object) -> None:
    with pytest.raises(ValueError, match=r'such as 5, 2\.5, "90s"'):
        parse_seconds(bad)


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "1.5", "", "many", None, "9" * 5000, "²", 1 << 62])
def test_what_is_no_count(bad: object) -> None:
    with pytest.raises(ValueError, match="whole number"):
        parse_count(bad)


@pytest.mark.parametrize(
    ("text", "cpus"), [(1, 1.0), (0.1, 0.1), (1.5, 1.5), ("2", 2.0), (" 0.25 ", 0.25), (65536, 65536.0)]
)
def test_cpus_may_be_fractions(text: object, cpus: float) -> None:
    found = parse_cpus(text)
    assert (found, type(found)) == (cpus, float)


@pytest.mark.parametrize(
    "bad", [0, 0.09, -1, True, None, "", "1.5 cores", "50%", "1e2", ".5", 65537, float("nan"), float("inf"), [], "²"]
)
def test_what_is_no_number_of_cpus(bad: object) -> None:
    with pytest.raises(ValueError, match=r"such as 2, 1\.5 or 0\.5; the least is 0\.1"):
        parse_cpus(bad)


@pytest.mark.parametrize("size", [1, 1000, 1 << 10, 1536, 256 << 20, 3 << 29, 1 << 40])
def test_a_size_that_is_shown_can_be_read(size: int) -> None:
    assert parse_size(show_size(size)) == size


@pytest.mark.parametrize("seconds", [0.25, 2.5, 90.0, 3600.0])
def test_a_time_that_is_shown_can_be_read(seconds: float) -> None:
    assert parse_seconds(show_seconds(seconds)) == seconds
