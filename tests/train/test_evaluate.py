"""Validation losses against the logits, bits per byte, and subnets on the same rows."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from paddle_ernie.config.elastic import SubnetSpec
from paddle_ernie.data.types import IGNORE_LABEL, Batch
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.elastic.supernet import uniform_plan
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.train.evaluate import EvalResult, evaluate, target_bytes
from tests.train.tiny import TINY

TOKEN_BYTES = np.arange(TINY.vocab_size, dtype=np.int64) % 5


def nats_from_logits(logits_BSV: np.ndarray, labels_BS: np.ndarray) -> float:
    """Negative log-likelihood of all targets in float64."""
    logits_BSV = logits_BSV.astype(np.float64)
    is_target = labels_BS != IGNORE_LABEL
    picked = np.take_along_axis(logits_BSV, np.where(is_target, labels_BS, 0)[..., None], -1)
    log_z_BS = np.log(np.exp(logits_BSV).sum(axis=-1))
    return float((log_z_BS - picked[..., 0])[is_target].sum())


@pytest.mark.parametrize("micro_rows", [1, 3, 6])
def test_full_model_and_subnets_agree_with_their_logits(
    make_model: Callable[..., ErnieMoeModel], make_batch: Callable[..., Batch], micro_rows: int
) -> None:
    model, batch = make_model(), make_batch(6)
    small = Subnet.from_spec(SubnetSpec(layers=2, experts=2, top_k=1), TINY)
    results = evaluate(
        model, batch, {"small": small}, token_bytes=TOKEN_BYTES, micro_rows=micro_rows
    )
    assert list(results) == ["full", "small"]
    for name, subnet in (("full", Subnet.full(TINY)), ("small", small)):
        plan = uniform_plan(subnet, len(batch), TINY)
        logits = model.logits(batch.input_ids, batch.doc_ids, batch.position_ids, plan=plan)
        expected = nats_from_logits(logits.numpy(), batch.labels)
        assert results[name].nats == pytest.approx(expected, rel=1e-5)
        assert results[name].targets == batch.num_targets
    assert results["full"].nats != results["small"].nats


def test_units() -> None:
    result = EvalResult(nats=2000.0, targets=1000, target_bytes=3500)
    assert result.loss == 2.0
    assert result.perplexity == pytest.approx(math.e**2)
    assert result.bits_per_byte == pytest.approx(2000 / math.log(2) / 3500)
    assert EvalResult(1e9, 1, 1).perplexity == math.inf


def test_uniform_model_has_log_v_nats() -> None:
    """ln V nats a token over 2 bytes a token is log2(V) / 2 bits a byte."""
    result = EvalResult(nats=10 * math.log(256), targets=10, target_bytes=20)
    assert result.bits_per_byte == pytest.approx(4.0)
    assert result.perplexity == pytest.approx(256)


def test_bytes_are_those_of_targets_and_end_of_text_counts_none() -> None:
    token_bytes = np.array([0, 1, 2, 4], np.int64)  # 0 is the end-of-text token
    labels = np.array([[3, IGNORE_LABEL, 0], [2, 2, 1]], np.int64)
    assert target_bytes(labels, token_bytes) == 9
