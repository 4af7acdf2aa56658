import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import attention as module
from paddle_ernie.ops import reference
from paddle_ernie.ops.attention import attention, document_starts


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (2, 1), (4, 2)])
def test_values_and_gradients(check_operator, rng, heads, kv_heads):
    doc_ids = np.array([[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1, 1]])
    check_operator(
        lambda qkv: attention(qkv, doc_ids, heads, kv_heads),
        lambda qkv: reference.attention(qkv, doc_ids, heads, kv_heads),
        [rng.standard_normal((2, 6, heads + 2 * kv_heads, 2))],
    )


def test_gradients_over_several_blocks(check_operator, rng, monkeypatch):
    monkeypatch.setattr(module, "QUERY_ROWS", 4)  # two queries of two heads a block
    doc_ids = np.array([[0, 0, 0, 0, 0, 1, 1, 1, 2]])
    check_operator(
        lambda qkv: attention(qkv, doc_ids, 2, 1),
        lambda qkv: reference.attention(qkv, doc_ids, 2, 1),
        [rng.standard_normal((1, 9, 4, 2))],
    )


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 1)]),
    seed=st.integers(0, 1000),
)
def test_any_documents(lengths, heads, seed):
    doc_ids = np.repeat(np.arange(len(lengths)), lengths)[None]
    qkv = np.random.default_rng(seed).standard_normal((1, sum(lengths), heads[0] + 2 * heads[1], 4))
    result = attention(paddle.to_tensor(qkv.astype(np.float32)), doc_ids, *heads).numpy()
    expected = reference.attention(qkv, doc_ids, *heads)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_without_ids_a_row_is_one_document(rng):
    qkv = paddle.to_tensor(rng.standard_normal((2, 5, 4, 2)))
    alone = attention(qkv, None, 2, 1).numpy()
    assert np.array_equal(alone, attention(qkv, np.full((2, 5), 3), 2, 1).numpy())


def test_large_scores_do_not_overflow():
    qkv = paddle.full([1, 4, 3, 2], 300.0)
    qkv.stop_gradient = False
    result = attention(qkv, None, 1, 1)
    result.sum().backward()
    np.testing.assert_allclose(result.numpy(), 300.0)
    assert np.isfinite(qkv.grad.numpy()).all()


def test_document_starts():
    starts = document_starts(np.array([[5, 5, 6, 6, 5]]), (1, 5))
    assert starts.tolist() == [[0, 0, 2, 2, 4]]
