"""Nothing is left of clients that leave, are aborted, or do not read.

The long run is `pytest -m slow`; ERNIE_SOAK_SECONDS and ERNIE_SOAK_STREAMS change its size.
"""

import asyncio
import os

import pytest

from tests.serve.real_server import serving
from tests.serve.soak import Footprint, Soak, settled

ENGINE = {"max_num_seqs": 32, "max_num_batched_tokens": 128, "num_pages": 14}
"""Few pages: sequences are preempted all the time."""


def soak(tmp_path, model_dir, num_clients, seconds, warm_up, allowed_mib, **settings):
    with serving(
        tmp_path, model_dir, engine=ENGINE, max_concurrency=num_clients, **settings
    ) as server:
        # A first round of full width: what the allocator, pools and caches keep is then there.
        asyncio.run(Soak(server, num_clients, warm_up, seed=1).run())
        before = settled(server, Footprint.of(server))
        run = Soak(server, num_clients, seconds, seed=2)
        asyncio.run(run.run())
        after = settled(server, before)
        print(dict(run.outcomes), before, after)
        known = {"length", "stop", "abort", "left", "did not read"}
        mixed = {"abort+length", "abort+stop", "length+stop"}
        assert set(run.outcomes) <= known | mixed | {"429"}, run.outcomes
        assert all(run.outcomes[kind] for kind in ("length", "left", "did not read"))
        totals = server.metrics()
        assert totals["request_aborted_total"] > 0 and totals["request_preempted_total"] > 0
        assert (after.running, after.waiting) == (0, 0)
        assert after.free_pages == before.free_pages
        assert after.descriptors <= before.descriptors + 2
        assert after.threads <= before.threads + 2
        assert after.resident_mib <= before.resident_mib + allowed_mib
        assert server.end() == 0, server.log
        assert "Traceback" not in server.log
        return run


def test_150_streams_leave_nothing_behind(tmp_path, model_dir):
    soak(tmp_path, model_dir, 150, 8.0, warm_up=4.0, allowed_mib=30)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_1000_streams_leave_nothing_behind(tmp_path, model_dir, workers):
    seconds = float(os.environ.get("ERNIE_SOAK_SECONDS", "600"))
    streams = int(os.environ.get("ERNIE_SOAK_STREAMS", "1000"))
    run = soak(
        tmp_path, model_dir, streams, seconds, warm_up=min(60.0, seconds / 2), allowed_mib=60,
        workers=workers,
    )  # fmt: skip
    assert run.outcomes.total() > streams
