import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.ops import reference
from paddle_ernie.ops.attention import attention
from paddle_ernie.ops.paged_attention import KVPages, PagedBatch, paged_attention, pages_for

SHAPES = st.sampled_from([(4, 2, 64), (6, 1, 8), (3, 3, 40)])
FORMATS = ("fp32", "bf16")


class Server:
    """Keeps sequences in one pool and continues several at once."""

    def __init__(self, documents: list[np.ndarray], num_heads: int, format: str, **options) -> None:
        self.documents, self.num_heads = documents, num_heads
        needed = [pages_for(len(document)) for document in documents]
        N, d = documents[0].shape[1:]
        self.pages = KVPages(1, sum(needed) + 2, (N - num_heads) // 2, d, format=format, **options)
        self.tables = [self.pages.allocate(count) for count in needed[::-1]][::-1]
        self.lengths = [0] * len(documents)
        self.outputs: list[list[np.ndarray]] = [[] for _ in documents]

    def step(self, new_tokens: dict[int, int]) -> None:
        """Document -> how many of its tokens come next."""
        rows = [
            self.documents[i][self.lengths[i] : self.lengths[i] + count]
            for i, count in new_tokens.items()
        ]
        counts = [len(row) for row in rows]
        batch = PagedBatch(
            [self.tables[i] for i in new_tokens], [self.lengths[i] for i in new_tokens], counts
        )
        qkv = paddle.to_tensor(np.concatenate(rows))
        out = paged_attention(qkv, self.num_heads, self.pages, 0, batch).numpy()
        parts = np.split(out, np.cumsum(counts)[:-1])
        for i, part, count in zip(new_tokens, parts, counts, strict=True):
            self.outputs[i].append(part)
            self.lengths[i] += count

    def run(self, rng: np.random.Generator, largest: int) -> None:
        """Random subsets by random numbers of tokens, until all is done."""
        while left := [i for i, doc in enumerate(self.documents) if self.lengths[i] < len(doc)]:
            chosen = rng.permutation(left)[: rng.integers(1, len(left) + 1)]
            self.step({int(i): int(rng.integers(0, largest + 1)) for i in chosen})

    def result(self, i: int) -> np.ndarray:
        return np.concatenate(self.outputs[i])


def make_documents(lengths, shape, seed, dtype=np.float32) -> list[np.ndarray]:
    H, G, d = shape
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, H + 2 * G, d)).astype(dtype) for n in lengths]


def alone(document: np.ndarray, shape, format: str) -> np.ndarray:
    """The training forward of one document."""
    return attention(paddle.to_tensor(document[None]), None, *shape[:2], format).numpy()[0]


@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 140), min_size=1, max_size=4),
    shape=SHAPES,
    largest=st.sampled_from([1, 3, 70, 200]),
    seed=st.integers(0, 1000),
)
@pytest.mark.parametrize("format", FORMATS)
def test_bits_are_those_of_the_training_forward(format, lengths, shape, largest, seed):
    documents = make_documents(lengths, shape, seed)
    server = Server(documents, shape[0], format)
    server.run(np.random.default_rng(seed), largest)
    for i, document in enumerate(documents):
        assert np.array_equal(server.result(i), alone(document, shape, format))


@pytest.mark.parametrize("format", FORMATS)
def test_what_a_page_held_before_does_not_matter(format):
    shape = (4, 2, 64)
    documents = make_documents([100, 30], shape, 0)
    server = Server(documents, 4, format)
    server.pages.layers[0][:] = 255  # NaN in every format
    server.run(np.random.default_rng(0), 7)
    for i, document in enumerate(documents):
        assert np.array_equal(server.result(i), alone(document, shape, format))


def test_sequences_share_full_pages():
    shape = (4, 2, 16)
    (document,) = make_documents([100], shape, 0)
    server = Server([document, document], 4, "fp32")
    server.step({0: 64})
    server.pages.release(server.tables[1][:1])
    server.pages.share(server.tables[0][:1])
    server.tables[1][0], server.lengths[1] = server.tables[0][0], 64
    server.step({0: 36, 1: 36})
    assert np.array_equal(server.result(1), alone(document, shape, "fp32")[64:])


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 5e-6)])
def test_values(dtype, tolerance):
    """float64 runs the plain body."""
    shape = (4, 2, 16)
    documents = make_documents([70, 5, 130], shape, 1, dtype)
    server = Server(documents, 4, "fp32", dtype=str(np.dtype(dtype)))
    server.run(np.random.default_rng(1), 40)
    for i, document in enumerate(documents):
        qkv = document[None].astype(np.float64)
        expected = reference.attention(qkv, np.zeros((1, len(document))), 4, 2)[0]
        np.testing.assert_allclose(server.result(i), expected, rtol=0, atol=tolerance)


def test_a_batch_advances():
    shape = (4, 2, 16)
    (document,) = make_documents([70], shape, 2)
    pages = KVPages(1, 2, 2, 16)
    batch = PagedBatch([pages.allocate(2)], [0], [7])
    parts = []
    for part in np.split(document, 10):
        parts.append(paged_attention(paddle.to_tensor(part), 4, pages, 0, batch).numpy())
        batch.advance()
    assert np.array_equal(np.concatenate(parts), alone(document, shape, "fp32"))


def test_a_batch_without_tokens():
    pages = KVPages(1, 1, 1, 8)
    for batch in (PagedBatch([], [], []), PagedBatch([pages.allocate(1)], [0], [0])):
        assert paged_attention(paddle.zeros([0, 4, 8]), 2, pages, 0, batch).shape == [0, 16]


def test_pages_are_counted():
    pages = KVPages(2, 3, 1, 8)
    first = pages.allocate(2)
    pages.share(first[:1])
    pages.release(first)
    assert pages.num_free == 2
    pages.release(first[:1])
    assert pages.num_free == 3
    assert sorted(pages.allocate(3)) == [0, 1, 2]
    with pytest.raises(AssertionError, match="1 pages wanted, 0 are free"):
        pages.allocate(1)
    pages.release([1])
    for misuse in (pages.share, pages.release):
        with pytest.raises(AssertionError, match="page 1 is free"):
            misuse([1])


def test_a_table_without_room_is_refused():
    with pytest.raises(AssertionError, match="sequence 1: 65 positions in pages for 64"):
        PagedBatch([[0, 1], [2]], [0, 60], [100, 5])


@pytest.mark.parametrize("page", [-1, 2])
def test_pages_outside_the_pool_are_refused(page):
    pages = KVPages(1, 2, 1, 8)
    with pytest.raises(OSError, match=f"page 0 of sequence 0 is {page}; expected 0 to 1"):
        paged_attention(paddle.zeros([1, 4, 8]), 2, pages, 0, PagedBatch([[page]], [0], [1]))
