import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops.add import add
from paddle_ernie.ops.permute import dispatch, unpermute
from tests.ops.kernels import running, tensors


def test_values_and_gradients(check_operator, rng):
    check_operator(add, lambda a, b: a + b, [rng.standard_normal((5, 6)) for _ in range(2)])


@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (3, 7, 1001), (200, 512)])
def test_bits_are_those_of_numpy_on_any_number_of_threads(shape, rng):
    a, b = rng.standard_normal((2, *shape)).astype(np.float32)
    if a.size > 2:
        a.flat[0], b.flat[1] = np.nan, np.inf
    for threads in (1, 3):
        with running(threads=threads):
            assert add(*tensors(a, b)).numpy().tobytes() == (a + b).tobytes()


def test_another_shape_is_refused():
    with pytest.raises(OSError, match="shapes of the summands differ"):
        add(paddle.ones([2, 3]), paddle.ones([3, 2]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 3)), max_size=8))
def test_gradients_where_tensors_have_several_uses(operations):
    """Paddle adds gradients up in place: summands that shared one would spoil each other's."""
    to = dispatch([np.array([[0], [1]])], 2)

    def gradient(dtype: str) -> np.ndarray:
        x = paddle.full([2, 3], 0.5, dtype)
        x.stop_gradient = False
        values = [x * 1.0, x * 2.0]
        for first, second, kind in operations:
            a, b = values[first % len(values)], values[second % len(values)]
            if kind == 0:
                values.append(unpermute(a * 0.5, paddle.ones([2], dtype), to, a, b, a))
            elif kind == 1:
                values.append(a.reshape([3, 2]).reshape([2, 3]) - 0.5 * b)
            else:
                values.append(add(a, b))
        sum(values[1:], values[0]).sum().backward()
        return x.grad.numpy()

    np.testing.assert_allclose(gradient("float32"), gradient("float64"), rtol=1e-5)


def test_gradients_of_only_one_summand():
    for wanting in range(2):
        pair = [paddle.ones([2, 3]), paddle.ones([2, 3])]
        pair[wanting].stop_gradient = False
        add(*pair).sum().backward()
        assert [x.grad is not None for x in pair] == [i == wanting for i in range(2)]
