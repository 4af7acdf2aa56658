import numpy as np
import paddle
import pytest

from paddle_ernie.ops.arrays import row_chunks, tensor, view


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
def test_view_shares_memory_in_both_directions(dtype):
    source = paddle.arange(6).reshape([2, 3]).astype(dtype)
    array = view(source)
    assert array.dtype == np.dtype(dtype)
    array[1, 2] = 50
    assert source.numpy()[1, 2] == 50


def test_view_outlives_the_tensor():
    array = view(paddle.full([1000], 3.0))
    paddle.full([1000], 4.0)  # would reuse the memory
    assert (array == 3).all()


def test_view_of_parts():
    source = paddle.arange(12, dtype="float32").reshape([3, 4])
    assert view(source[1:]).tolist() == source.numpy()[1:].tolist()
    assert view(source.t()).tolist() == source.numpy().T.tolist()
    assert view(paddle.empty([0, 4])).shape == (0, 4)


def test_tensor_shares_memory():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    shared = tensor(array[1:])
    array[1, 0] = 70
    assert shared.numpy().tolist() == [[70, 4, 5]]
    assert tensor(np.empty((0, 3), np.float32)).shape == [0, 3]


def test_row_chunks_cover_all_rows_once():
    for rows, row_bytes in ((0, 8), (1, 8), (1000, 4096), (3, 10**9)):
        covered = [r for chunk in row_chunks(rows, row_bytes) for r in range(rows)[chunk]]
        assert covered == list(range(rows))
