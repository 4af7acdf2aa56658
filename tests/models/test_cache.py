import numpy as np
import paddle
import pytest

from paddle_ernie.models.cache import KVCache
from paddle_ernie.models.plan import ExpertGroup, ForwardPlan, LayerPlan


def cached_logits(model, ids: np.ndarray, chunks: list[int], plan=None) -> np.ndarray:
    cache, first, parts = KVCache(model.config.num_hidden_layers, ids.shape[1]), 0, []
    with paddle.no_grad():
        for size in chunks:
            part = ids[:, first : first + size]
            parts.append(model.logits(part, plan=plan, cache=cache).numpy())
            first += size
    assert cache.length == ids.shape[1]
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("chunks", [[12], [1] * 12, [5, 1, 1, 4, 1]])
def test_cached_logits_match_the_full_forward(make_model, make_rows, chunks):
    model, ids = make_model(), make_rows(3, seq_len=12).input_ids
    np.testing.assert_allclose(
        cached_logits(model, ids, chunks), model.logits(ids).numpy(), rtol=1e-4, atol=1e-5
    )


def test_rows_may_skip_layers(make_model, make_rows):
    model, ids = make_model(), make_rows(3, seq_len=8).input_ids
    some = LayerPlan((ExpertGroup(np.array([0, 2]), np.array([1, 3, 5]), 1),))
    every = LayerPlan((ExpertGroup(np.arange(3), None, 2),))
    plan = ForwardPlan(3, (every, some, LayerPlan(()), every))
    np.testing.assert_allclose(
        cached_logits(model, ids, [4, 1, 1, 2], plan),
        model.logits(ids, plan=plan).numpy(), rtol=1e-4, atol=1e-5,
    )  # fmt: skip


def test_a_full_cache_is_refused(make_model):
    model, cache = make_model(), KVCache(4, 3)
    with paddle.no_grad(), pytest.raises(AssertionError, match="3 positions got 4"):
        model.logits(np.array([[1, 2, 3, 4]]), cache=cache)
