import weakref
from collections.abc import Iterator

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import attention as module
from paddle_ernie.ops import library, reference
from paddle_ernie.ops.attention import attention, document_starts

TOLERANCES = {"fp32": 5e-6, "bf16": 3e-2}
"""Absolute, for standard normal inputs. bf16 keeps 8 bits; a result is a mean of such values."""

SHAPES = st.sampled_from([(1, 1, 64), (4, 2, 64), (6, 1, 8), (3, 3, 40), (2, 1, 128), (5, 1, 7)])
LENGTHS = st.lists(st.integers(1, 150), min_size=1, max_size=4)


def levels() -> Iterator[str]:
    """Each instruction set of this machine, in use until the next is asked for."""
    assert library.loaded()
    for name in library.ISA_NAMES[: library.ISA_NAMES.index(library.isa()) + 1]:
        with library.using(isa=name):
            yield name


def packed_row(lengths, shape, seed) -> tuple[np.ndarray, np.ndarray]:
    """(qkv [1, S, H + 2G, d], document ids [1, S])."""
    H, G, d = shape
    qkv = np.random.default_rng(seed).standard_normal((1, sum(lengths), H + 2 * G, d))
    return qkv.astype(np.float32), np.repeat(np.arange(len(lengths)), lengths)[None]


def run(qkv, doc_ids, H, G, format="fp32") -> np.ndarray:
    with paddle.no_grad():
        return attention(paddle.to_tensor(qkv), doc_ids, H, G, format).numpy()


def gradient(qkv, doc_ids, H, G, format="fp32") -> np.ndarray:
    """Of a weighted sum; float64 goes through the plain body."""
    tensor = paddle.to_tensor(qkv, stop_gradient=False)
    result = attention(tensor, doc_ids, H, G, format)
    weights = np.random.default_rng(1).standard_normal(result.shape).astype(qkv.dtype)
    result.backward(paddle.to_tensor(weights))
    return tensor.grad.numpy()


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


@settings(max_examples=12)
@given(lengths=LENGTHS, shape=SHAPES, seed=st.integers(0, 1000))
@pytest.mark.parametrize("format", TOLERANCES)
def test_any_documents(format, lengths, shape, seed):
    qkv, doc_ids = packed_row(lengths, shape, seed)
    expected = reference.attention(qkv.astype(np.float64), doc_ids, *shape[:2])
    for _ in levels():
        result = run(qkv, doc_ids, *shape[:2], format)
        np.testing.assert_allclose(result, expected, rtol=0, atol=TOLERANCES[format])


@settings(max_examples=12)
@given(lengths=LENGTHS, shape=SHAPES, seed=st.integers(0, 1000))
@pytest.mark.parametrize(("format", "tolerance"), [("fp32", 2e-6), ("bf16", 1.2e-2)])
def test_kernel_gradients(format, tolerance, lengths, shape, seed):
    qkv, doc_ids = packed_row(lengths, shape, seed)
    expected = gradient(qkv.astype(np.float64), doc_ids, *shape[:2])
    scale = np.sqrt(np.mean(expected**2))
    for _ in levels():
        found = gradient(qkv, doc_ids, *shape[:2], format)
        assert np.sqrt(np.mean((found - expected) ** 2)) < tolerance * scale
        np.testing.assert_allclose(found, expected, rtol=0, atol=30 * tolerance * scale)


@pytest.mark.parametrize("format", TOLERANCES)
def test_gradients_of_a_document_of_several_segments(format):
    """Key gradients are computed 512 positions at a time, and the queries' are added up."""
    qkv, doc_ids = packed_row([1100, 20], (4, 2, 16), 0)
    expected = gradient(qkv.astype(np.float64), doc_ids, 4, 2)
    found = gradient(qkv, doc_ids, 4, 2, format)
    tolerance = {"fp32": 2e-6, "bf16": 1.2e-2}[format] * np.sqrt(np.mean(expected**2))
    assert np.sqrt(np.mean((found - expected) ** 2)) < tolerance


@settings(max_examples=10)
@given(lengths=LENGTHS, shape=SHAPES, seed=st.integers(0, 1000))
@pytest.mark.parametrize("format", TOLERANCES)
def test_bits_of_a_document_do_not_depend_on_its_row(format, lengths, shape, seed):
    qkv, doc_ids = packed_row(lengths, shape, seed)
    for _ in levels():
        packed = run(qkv, doc_ids, *shape[:2], format)
        for document in range(len(lengths)):
            alone = run(qkv[:, doc_ids[0] == document], None, *shape[:2], format)
            assert np.array_equal(packed[:, doc_ids[0] == document], alone)


@pytest.mark.parametrize("format", TOLERANCES)
def test_bits_do_not_depend_on_threads(rng, format):
    qkv = rng.standard_normal((3, 150, 8, 64)).astype(np.float32)
    doc_ids = np.sort(rng.integers(0, 3, (3, 150)))
    results = []
    for threads in (1, 2, 5):
        with library.using(threads=threads):
            results.append((run(qkv, doc_ids, 4, 2, format), gradient(qkv, doc_ids, 4, 2, format)))
    for values, gradients in results[1:]:
        assert np.array_equal(values, results[0][0])
        assert np.array_equal(gradients, results[0][1])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("format", TOLERANCES)
def test_what_is_not_finite_reaches_the_queries_that_see_it(rng, format, bad):
    qkv = rng.standard_normal((1, 200, 4, 64)).astype(np.float32)
    doc_ids = np.repeat([0, 1, 2], [40, 130, 30])[None]
    for _ in levels():
        clean = run(qkv, doc_ids, 2, 1, format)
        for part in (2, 3):  # the key, the value
            changed = qkv.copy()
            changed[0, 110, part] = bad
            result = run(changed, doc_ids, 2, 1, format)
            assert not np.isfinite(result[0, 110:170]).all(axis=-1).any()
            for rows in (slice(0, 110), slice(170, 200)):
                assert np.array_equal(result[0, rows], clean[0, rows])


def test_batches_without_tokens():
    for shape in ([0, 5, 4, 8], [2, 0, 4, 8]):
        qkv = paddle.zeros(shape)
        qkv.stop_gradient = False
        result = attention(qkv, None, 2, 1)
        assert result.shape == [*shape[:2], 16]
        result.sum().backward()
        assert qkv.grad.shape == shape


def test_results_do_not_keep_themselves_alive(rng):
    """The backward pass holds the result and the ids, and the result its backward pass."""
    qkv = paddle.to_tensor(rng.standard_normal((1, 5, 4, 8)).astype(np.float32))
    qkv.stop_gradient = False
    doc_ids = np.zeros((1, 5), np.int64)
    gone = weakref.ref(doc_ids)
    result = attention(qkv, doc_ids, 2, 1)
    del doc_ids
    assert gone() is not None
    del result
    assert gone() is None


def test_one_token_sees_itself(rng):
    qkv = rng.standard_normal((3, 1, 4, 8)).astype(np.float32)
    result = run(qkv, None, 2, 1).reshape(3, 2, 8)
    assert np.array_equal(result, np.repeat(qkv[:, 0, 3:], 2, axis=1))


def test_without_ids_a_row_is_one_document(rng):
    for dtype in (np.float32, np.float64):
        qkv = rng.standard_normal((2, 5, 4, 2)).astype(dtype)
        assert np.array_equal(run(qkv, None, 2, 1), run(qkv, np.full((2, 5), 3), 2, 1))


def test_large_scores_do_not_overflow():
    qkv = paddle.full([1, 4, 3, 2], 300.0)
    qkv.stop_gradient = False
    result = attention(qkv, None, 1, 1)
    result.sum().backward()
    np.testing.assert_allclose(result.numpy(), 300.0, rtol=1e-6)
    assert np.isfinite(qkv.grad.numpy()).all()


def test_document_starts():
    starts = document_starts(np.array([[5, 5, 6, 6, 5]]), (1, 5))
    assert starts.tolist() == [[0, 0, 2, 2, 4]]


def test_the_plain_body_rounds_to_bf16():
    values = np.array([1.0, 1.0 + 2**-9, 1.0 + 3 * 2**-9, np.nan, -np.inf], np.float32)
    expected = np.array([1.0, 1.0, 1.0 + 2**-7, np.nan, -np.inf], np.float32)
    assert np.array_equal(module.rounded(values, "bf16"), expected, equal_nan=True)
    assert module.rounded(values, "fp32") is values
