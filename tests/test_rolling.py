"""What is kept of an endless stream, against the stream itself: its first bytes and its last."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_sandbox.worker.rolling import Rolling

PIECES = st.lists(st.binary(max_size=40), max_size=30)


def filled(pieces: list[bytes], head: int, tail: int) -> tuple[Rolling, bytes]:
    rolling = Rolling(head, tail)
    for piece in pieces:
        rolling.add(piece)
    return rolling, b"".join(pieces)


@given(PIECES, st.integers(1, 50), st.integers(1, 50))
@settings(max_examples=300)
def test_the_first_and_the_last_bytes_are_kept(pieces: list[bytes], head: int, tail: int) -> None:
    rolling, whole = filled(pieces, head, tail)
    first, omitted, last = rolling.read()
    assert rolling.total == len(whole)
    assert first == whole[:head]
    assert last == whole[head:][-tail:]
    assert omitted == max(0, len(whole) - head - tail)
    rolling.close()


@given(PIECES, st.integers(1, 50), st.integers(1, 50))
@settings(max_examples=300)
def test_the_newest_is_an_unbroken_end(pieces: list[bytes], head: int, tail: int) -> None:
    rolling, whole = filled(pieces, head, tail)
    offset, newest = rolling.newest()
    assert whole[offset:] == newest
    assert len(newest) >= min(len(whole), tail)
    rolling.close()


@given(PIECES, st.integers(1, 30), st.integers(1, 30))
@settings(max_examples=300)
def test_a_text_says_what_it_leaves_out(pieces: list[bytes], head: int, tail: int) -> None:
    """Also where less is shown than is kept."""
    plain = [bytes(97 + byte % 26 for byte in piece) for piece in pieces]
    rolling, whole = filled(plain, 40, 50)
    text = rolling.text(head, tail)
    if len(whole) <= head + tail:
        assert text == whole.decode()
    else:
        left_out = len(whole) - head - tail
        marker = f"\n[... {left_out} bytes left out ...]\n"
        assert text == whole[:head].decode() + marker + whole[-tail:].decode()
    rolling.close()


def test_it_is_written_in_one_process_and_read_in_another() -> None:
    """A reader that comes in the middle of a write sees the stream before or after it, not half of it."""
    rolling = Rolling(1000, 10_000)
    child = os.fork()
    if child == 0:
        number = 0
        for _ in range(20_000):
            rolling.add(b"".join(b"%07d\n" % (number + step) for step in range(10)))
            number += 10
            os.urandom(8192)  # as long as a guard takes to read a pipe
        os._exit(0)
    looks = 0
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        offset, newest = rolling.newest()
        numbers = newest[-offset % 8 :].split(b"\n")[:-1]
        first = (offset + -offset % 8) // 8
        assert numbers == [b"%07d" % number for number in range(first, first + len(numbers))]
        looks += 1
    assert rolling.total == 8 * 200_000
    assert looks > 0
    rolling.close()


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1_000_000])
def test_one_write_of_any_size(size: int) -> None:
    rolling, whole = filled([bytes(number % 251 for number in range(size))], 10, 90)
    assert rolling.read() == (whole[:10], max(0, size - 100), whole[10:][-90:])
    rolling.close()
