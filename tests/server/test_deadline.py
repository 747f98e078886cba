"""Bounded waits: they end in time, and one that ended in time leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from server.http.deadline import Deadline


def run(test):
    return asyncio.run(asyncio.wait_for(test(), 5))


def test_a_wait_that_takes_too_long_ends():
    async def test():
        deadline, loop = Deadline(), asyncio.get_running_loop()
        with pytest.raises(TimeoutError), deadline.at(loop.time() + 0.01):
            await asyncio.sleep(5)
        task = asyncio.current_task()
        assert task is not None and not task.cancelling()

    run(test)


def test_a_later_wait_has_its_own_time_though_the_timer_was_set_for_an_earlier_one():
    async def test():
        deadline, loop = Deadline(), asyncio.get_running_loop()
        with deadline.at(loop.time() + 0.02):
            await asyncio.sleep(0)
        with deadline.at(loop.time() + 5):
            await asyncio.sleep(0.05)
        started = loop.time()
        with pytest.raises(TimeoutError), deadline.at(started + 0.03):
            await asyncio.sleep(5)
        assert loop.time() - started >= 0.03

    run(test)


def test_an_earlier_end_is_kept_too():
    async def test():
        deadline, loop = Deadline(), asyncio.get_running_loop()
        with deadline.at(loop.time() + 60):
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError), deadline.at(loop.time() + 0.01):
            await asyncio.sleep(5)
        deadline.close()

    run(test)


def test_the_timer_does_not_disturb_who_does_not_wait():
    async def test():
        deadline, loop = Deadline(), asyncio.get_running_loop()
        with deadline.at(loop.time() + 0.01):
            await asyncio.sleep(0)
        await asyncio.sleep(0.03)
        with deadline.at(loop.time() - 1):
            pass
        await asyncio.sleep(0.01)

    run(test)


def test_being_cancelled_is_no_timeout():
    async def test():
        async def wait():
            with Deadline().at(asyncio.get_running_loop().time() + 5):
                await asyncio.sleep(5)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(test)
