"""Each measurement runs and relates its figures as it says; how large they are is the machine's."""

from pathlib import Path

import numpy as np
import pytest

from paddle_ernie.config.elastic import SubnetSpec
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.data.types import IGNORE_LABEL
from paddle_ernie.train.bench import (
    BENCH_MODEL,
    SUBNETS,
    Shapes,
    bench_checkpoint,
    bench_experts,
    bench_loader,
    bench_memory,
    bench_subnets,
    random_batch,
)
from paddle_ernie.train.bench_records import LoaderShare
from tests.train.tiny import TINY

SHAPES = Shapes(model=TINY, rows=2, seq_len=16, steps=2)


def test_experts_cost_the_router_only_by_the_cost_model() -> None:
    times = bench_experts(SHAPES, (4, 8))
    assert [kind.name for kind in times] == ["4 experts", "8 experts"]
    assert times[0].seconds_relative == 1.0
    assert times[1].seconds_relative == times[1].seconds / times[0].seconds
    assert 1.0 < times[1].flops_relative < 1.1
    assert times[0].tokens_per_s == pytest.approx(32 / times[0].seconds)


def test_subnets_relate_to_the_first() -> None:
    full, small = bench_subnets(SHAPES, {"full": SubnetSpec(), "small": SubnetSpec(layers=1)})
    assert full.flops_relative == 1.0
    assert small.flops_relative < 1.0


def test_default_subnets_fit_the_default_model() -> None:
    from paddle_ernie.elastic.subnet import Subnet

    for spec in SUBNETS.values():
        Subnet.from_spec(spec, BENCH_MODEL).validate(BENCH_MODEL)


def test_checkpoint_speed_and_nothing_left_behind(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["text to learn from"], TINY.vocab_size)
    speed = bench_checkpoint(tmp_path, TINY, tokenizer, repeats=1)
    assert speed.megabytes > 0.1
    assert speed.share_of_disk_speed == speed.disk_seconds / speed.write_seconds
    assert list(tmp_path.iterdir()) == []


def test_memory_of_a_process_of_its_own() -> None:
    use = bench_memory("tiny", SHAPES)
    assert 50e6 < use.measured_bytes < 1.5e9
    assert use.ratio == use.measured_bytes / use.predicted_bytes


def test_loader_share() -> None:
    class Loader:
        def next_batch(self) -> object:
            return random_batch(SHAPES)

    share = bench_loader(Loader(), SHAPES, batches=2)
    assert 0 < share.share < 1
    assert LoaderShare(1.0, 3.0).share == 0.25


def test_random_batch_is_a_valid_batch() -> None:
    batch = random_batch(SHAPES)
    is_target = batch.labels != IGNORE_LABEL
    assert batch.num_targets == 2 * 14
    np.testing.assert_array_equal(
        batch.labels[:, :-1][is_target[:, :-1]], batch.input_ids[:, 1:][is_target[:, :-1]]
    )
    same_document = batch.doc_ids[:, 1:] == batch.doc_ids[:, :-1]
    np.testing.assert_array_equal(is_target[:, :-1], same_document)
    assert (np.diff(batch.position_ids, axis=1)[same_document] == 1).all()
