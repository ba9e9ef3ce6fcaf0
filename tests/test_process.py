"""Local processes: several may wait for the same end."""

from __future__ import annotations

import asyncio

from hermes_sandbox import process


async def killed_while_two_wait() -> list[bool]:
    child = process.start(["sh", "-c", "sleep 100 & echo started; wait"])
    local = process.LocalProcess(child, has_inner=True)
    started = asyncio.Event()
    local.attach(lambda data: started.set(), lambda data: None)
    await started.wait()
    assert local.find_inner() is not None
    waiting = [asyncio.ensure_future(local.wait(20.0)) for _ in range(2)]
    await asyncio.sleep(0)
    confirmed = [await local.kill(), *await asyncio.gather(*waiting)]
    local.close_all()
    return confirmed


def test_everybody_who_waits_for_an_end_hears_of_it() -> None:
    """One that ends it and one that closes it do: the second must not take the kernel's word from the first."""
    assert asyncio.run(killed_while_two_wait()) == [True, True, True]
