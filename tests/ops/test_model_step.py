"""Bits and shapes are tested in tests/models/test_inference.py, with models that have weights."""

import threading
import time

import numpy as np
import paddle
import pytest

from paddle_ernie.ops import library
from paddle_ernie.ops.model_step import PackedModel, StepShape
from paddle_ernie.ops.numerics import BF16, FP8, FP32, Recipe
from paddle_ernie.ops.paged_attention import KVPages, PagedBatch
from paddle_ernie.utils.errors import InputError

SHAPE = StepShape(
    vocab_size=50, hidden_size=32, num_heads=2, num_kv_heads=1, head_dim=16, num_layers=2,
    num_dense_layers=1, dense_width=40, num_experts=4, top_k=2, expert_width=24, shared_width=0,
    tied=True,
)  # fmt: skip
pytestmark = pytest.mark.skipif(not library.loaded(), reason="there is no plain body")


def make_weights(shape: StepShape, seed: int = 0) -> list[paddle.Tensor]:
    """In the order that `PackedModel` takes them."""
    D, E, d = shape.hidden_size, shape.num_experts, shape.head_dim
    layer = [
        [D],
        [D, (shape.num_heads + 2 * shape.num_kv_heads) * d],
        [shape.num_heads * d, D],
        [D],
    ]
    dense = [[D, 2 * shape.dense_width], [shape.dense_width, D]]
    experts = [[E, D], [E], [E, D, 2 * shape.expert_width], [E, shape.expert_width, D]]
    shapes = []
    for index in range(shape.num_layers):
        shapes += layer + (dense if index < shape.num_dense_layers else experts)
    shapes += [[shape.vocab_size, D], [D]]
    rng = np.random.default_rng(seed)
    tensors = [paddle.to_tensor(rng.normal(0, 0.2, s).astype(np.float32)) for s in shapes]
    return [*tensors, tensors[-2]]


def make(recipe: Recipe = FP32, shape: StepShape = SHAPE) -> PackedModel:
    return PackedModel(shape, make_weights(shape), recipe, eps=1e-5, rope_theta=1e4)


def make_pages(num_layers: int = 2, head_dim: int = 16, format: str = "fp32") -> KVPages:
    return KVPages(num_layers, 2, 1, head_dim, format=format)


@pytest.mark.parametrize(
    ("ids", "rows", "batch", "message"),
    [
        ([3, 50], [1], ([[0]], [0], [2]), "id 1 is 50; expected 0 to 49"),
        ([3, -1], [1], ([[0]], [0], [2]), "id 1 is -1"),
        ([3, 4], [2], ([[0]], [0], [2]), "row 0 is 2; expected 0 to 1"),
        ([3, 4], [1], ([[7]], [0], [2]), "page 0 of sequence 0 is 7; expected 0 to 1"),
        ([3, 4], [1], ([[0]], [0], [1]), "1 new tokens, ids are 2"),
    ],
)
def test_what_is_out_of_bounds_is_refused(ids, rows, batch, message):
    with pytest.raises(InputError, match=message):
        make().step(np.array(ids), make_pages(), PagedBatch(*batch), np.array(rows))


def test_pages_of_another_model_are_refused():
    batch, ids, rows = PagedBatch([[0]], [0], [1]), np.array([3]), np.array([0])
    with pytest.raises(InputError, match="pages for 3 layers; the model has 2"):
        make().step(ids, make_pages(num_layers=3), batch, rows)
    with pytest.raises(InputError, match="a page has 32768 bytes; the model's have 16384"):
        make().step(ids, make_pages(head_dim=40), batch, rows)
    with pytest.raises(InputError, match="a page has"):
        make().step(ids, make_pages(format="bf16"), batch, rows)


def test_weights_of_another_instruction_set_are_refused():
    with library.using(isa="portable"):
        model, pages = make(), make_pages()
    if library.isa() == "portable":
        pytest.skip("there is one instruction set only")
    with pytest.raises(InputError, match="another instruction set; pack them again"):
        model.step(np.array([3]), pages, PagedBatch([[0]], [0], [1]), np.array([0]))


def test_weights_that_do_not_fit_the_shape_are_refused():
    weights = make_weights(SHAPE)
    with pytest.raises(OSError, match="there are 16 weights, expected 17"):
        PackedModel(SHAPE, weights[:-1], FP32, eps=1e-5, rope_theta=1e4)
    weights[1] = weights[0]
    with pytest.raises(OSError, match="weight 1 has 32 numbers, expected 2048"):
        PackedModel(SHAPE, weights, FP32, eps=1e-5, rope_theta=1e4)


def test_nothing_to_do():
    logits, routes = make().step(
        np.array([], np.int64), make_pages(), PagedBatch([], [], []), np.array([], np.int64), True
    )
    assert logits.shape == (0, 50)
    assert routes.shape == (0, 1, 2)


def test_equal_weights_have_equal_blocks():
    """Whatever was in memory before: a checksum of the block is one of the weights."""
    for recipe in (FP32, BF16, FP8):
        first = make(recipe)._block.numpy()
        assert np.array_equal(make(recipe)._block.numpy(), first)


def test_fp8_takes_a_byte_per_weight():
    if library.ISA_NAMES.index(library.isa()) < library.ISA_NAMES.index("avx512_bf16"):
        pytest.skip("codes are read with bf16 products only")
    wide = StepShape(
        vocab_size=2, hidden_size=512, num_heads=8, num_kv_heads=8, head_dim=64, num_layers=1,
        num_dense_layers=1, dense_width=2048, num_experts=0, top_k=1, expert_width=1,
        shared_width=0, tied=True,
    )  # fmt: skip
    numbers = 4 * 512 * 512 + 3 * 512 * 2048
    assert numbers < make(FP8, wide).num_bytes < 1.05 * numbers
    assert 2 * numbers < make(BF16, wide).num_bytes < 2.05 * numbers


def test_other_threads_run_meanwhile():
    """A step holds no lock of Python: a counter goes on, and not only between steps."""
    shape = StepShape(
        vocab_size=50, hidden_size=512, num_heads=8, num_kv_heads=8, head_dim=64, num_layers=4,
        num_dense_layers=4, dense_width=1024, num_experts=0, top_k=1, expert_width=1,
        shared_width=0, tied=True,
    )  # fmt: skip
    model, pages = make(FP32, shape), KVPages(4, 8, 8, 64)
    batch = PagedBatch([pages.allocate(8)], [0], [512])
    ids, rows = np.zeros(512, np.int64), np.array([511])
    ticks, stop = [], threading.Event()

    def tick() -> None:
        while not stop.wait(1e-4):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.perf_counter()
    with library.using(threads=1):
        model.step(ids, pages, batch, rows)
    end = time.perf_counter()
    stop.set()
    thread.join()
    assert sum(begin < at < end for at in ticks) >= 5
