"""Which exceptions of the loop are reported. Processes themselves: test_front.py, test_run.py."""

import asyncio
import logging

from paddle_ernie.serve.processes.fleet import forget_late_wakeups


def test_late_wakeups_are_not_reported_and_everything_else_is(caplog):
    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(forget_late_wakeups)
        cancelled = loop.create_future()
        cancelled.cancel()
        loop.call_soon(cancelled.set_result, None)
        await asyncio.sleep(0.01)
        assert caplog.records == []
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(0.01)

    with caplog.at_level(logging.ERROR, logger="asyncio"):
        asyncio.run(main())
    assert len(caplog.records) == 1 and "ZeroDivisionError" in caplog.text
