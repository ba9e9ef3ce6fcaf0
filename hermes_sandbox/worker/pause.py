"""When a cancel may interrupt what the worker does with programs: only while it waits.

A cancel comes as a signal whose handler raises an exception in the place of whatever runs (channel.py). That is right
for a tool's own code, and wrong between the fork of a guard and the note that it is there. So the bookkeeping of
programs runs with the signal held back, and lets it through where it waits.
"""

import functools
import math
import signal

_SIGNALS = {signal.SIGIO}


def held(function):
    """A decorator: the function is only interrupted in `poll`."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            return function(*args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return wrapper


def poll(poller, seconds):
    """What a select.poll or select.epoll says within `seconds` (None: however long it takes). A cancel comes here."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        if hasattr(poller, "fileno"):  # an epoll, which counts in s
            return poller.poll(seconds)
        return poller.poll(None if seconds is None else math.ceil(seconds * 1000))
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
