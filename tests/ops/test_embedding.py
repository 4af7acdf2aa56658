import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import reference
from paddle_ernie.ops.embedding import embedding
from paddle_ernie.utils.errors import InputError
from tests.ops.kernels import AVX2, AVX512, PORTABLE, running, same_bits, tensors

levels = pytest.mark.parametrize("level", [PORTABLE, AVX2, AVX512])


def test_values_and_gradients(check_operator, rng):
    ids = np.array([2, 0, 2, 5, 2])
    check_operator(
        lambda weight: embedding(ids, weight),
        lambda weight: reference.embedding(ids, weight),
        [rng.standard_normal((6, 3))],
    )


@levels
@settings(max_examples=20)
@given(st.data())
def test_rows_are_copied_and_gradients_summed_in_token_order(level, data):
    vocabulary, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 70))
    ids = np.array(data.draw(st.lists(st.integers(0, vocabulary - 1), max_size=60)), np.int64)
    rng = np.random.default_rng(len(ids))
    dy = rng.standard_normal((len(ids), width)).astype(np.float32)
    (weight,) = tensors(rng.standard_normal((vocabulary, width)))
    with running(level=level):
        y = embedding(ids, weight)
        y.backward(paddle.to_tensor(dy))
    assert np.array_equal(y.numpy(), reference.embedding(ids, weight.numpy()))
    expected = np.zeros((vocabulary, width), np.float32)
    for token, row in zip(ids, dy, strict=True):
        expected[token] += row
    assert np.array_equal(weight.grad.numpy(), expected)


def test_threads_do_not_change_bits(rng):
    ids = rng.integers(0, 500, 3000)
    dy = paddle.to_tensor(rng.standard_normal((3000, 64)).astype(np.float32))
    gradients = []
    for threads in (1, 2, 3):
        with running(threads=threads):
            (weight,) = tensors(rng.standard_normal((500, 64)))
            embedding(ids, weight).backward(dy)
            gradients.append(weight.grad)
    assert same_bits(gradients[0], gradients[1])
    assert same_bits(gradients[0], gradients[2])


@pytest.mark.parametrize("dtype", [np.int32, np.uint16])
def test_other_integers_and_strides(dtype, rng):
    (weight,) = tensors(rng.standard_normal((9, 4)))
    ids = np.array([1, 8, 3, 0], dtype)
    assert np.array_equal(embedding(ids[::2], weight).numpy(), weight.numpy()[[1, 3]])


@pytest.mark.parametrize(("ids", "wrong"), [([0, 4], "token 1 has id 4"), ([-1], "id -1")])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_id_outside_of_the_table_is_an_error(ids, wrong, dtype):
    with pytest.raises(InputError, match=wrong):
        embedding(np.array(ids), paddle.zeros([4, 2], dtype))
