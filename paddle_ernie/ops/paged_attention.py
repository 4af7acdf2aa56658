"""Attention of new tokens over keys and values kept in pages: prefill, in chunks or whole, and
decoding, for sequences of any lengths in one call. Called by the model's cache and by servers.

    pages    one pool per layer; a page holds 64 positions of one sequence, for all key heads
    tables   [B, P]   the pages of each sequence, in order
    lengths  [B]      positions they hold before the call
    starts   [B + 1]  sequence b's new tokens are rows starts[b] to starts[b + 1] of qkv [T, N, d]

The new keys and values go into the pages first, then the new queries attend to everything up to
themselves. With the library a token's result has the bits that it has in `attention`, whatever the
batch, the chunks and the pages.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import paddle

from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import empty, tensor, view
from paddle_ernie.ops.attention import FORMATS, Block, attend_block, rounded

PAGE_SIZE = 64
"""Positions of a page; csrc/cpu/attention.h has the same."""


def pages_for(positions: int) -> int:
    """Pages that so many positions of one sequence take."""
    return -(-positions // PAGE_SIZE)


class KVPages:
    """A pool of pages for every layer of a model: page i of each layer belongs to one sequence.

    Pages are counted, so that sequences with a common beginning can share those of it. Only full
    pages may be shared: a sequence writes to its last page.
    """

    def __init__(
        self,
        num_layers: int,
        num_pages: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        format: str = "fp32",
        dtype: paddle.dtype = paddle.float32,
    ) -> None:
        assert format in FORMATS, f"format {format!r}; expected one of {FORMATS}"
        self.format = format
        self.num_pages = num_pages
        self.raw = library.available(paddle.empty([0], dtype))
        """Pages are bytes in the kernels' own layout; otherwise keys and values [2, 64, d]."""
        if self.raw:
            width = -(-head_dim // 32) * 32
            page = [2 * PAGE_SIZE * width * (4 if format == "fp32" else 2)]
        else:
            page = [2, PAGE_SIZE, head_dim]
        shape, kind = [num_pages, num_kv_heads, *page], "uint8" if self.raw else dtype
        self.layers = [paddle.empty(shape, kind) for _ in range(num_layers)]
        self.page_bytes = int(np.prod(shape[1:])) * self.layers[0].element_size()
        """Of one page of one layer, with all key heads."""
        self._references = [0] * num_pages
        self._unused = list(range(num_pages))[::-1]

    @property
    def num_free(self) -> int:
        """Pages that `allocate` can still hand out."""
        return len(self._unused)

    def allocate(self, count: int) -> list[int]:
        """Ids of `count` pages, each held once. The caller asks `num_free` first."""
        assert count <= self.num_free, f"{count} pages wanted, {self.num_free} are free"
        ids = [self._unused.pop() for _ in range(count)]
        for page in ids:
            self._references[page] = 1
        return ids

    def share(self, ids: Sequence[int]) -> None:
        """Hold these pages once more."""
        for page in ids:
            assert self._references[page] > 0, f"page {page} is free and cannot be shared"
            self._references[page] += 1

    def release(self, ids: Sequence[int]) -> None:
        """Hold these pages once less; those that nobody holds are free."""
        for page in ids:
            assert self._references[page] > 0, f"page {page} is free already"
            self._references[page] -= 1
            if self._references[page] == 0:
                self._unused.append(page)


class PagedBatch:
    """Which sequences a step continues, by how many tokens each. The same for all layers.

    After the last layer, `advance` makes it the batch that continues them by as many tokens again.
    """

    def __init__(
        self,
        tables: Sequence[Sequence[int]],
        lengths: Sequence[int],
        new_tokens: Sequence[int],
    ) -> None:
        """`tables[b]` lists the pages of sequence b, with room for its new tokens."""
        most = max(map(len, tables), default=0)
        self.tables_BP = np.zeros((len(tables), most), np.int32)
        for row, pages in zip(self.tables_BP, tables, strict=True):
            row[: len(pages)] = pages
        self.lengths_B = np.array(lengths, np.int64)
        self.starts = np.zeros(len(tables) + 1, np.int64)
        np.cumsum(new_tokens, out=self.starts[1:])
        self.num_tokens = int(self.starts[-1])
        """T."""
        for b, (pages, length, new) in enumerate(zip(tables, lengths, new_tokens, strict=True)):
            end, room = length + new, len(pages) * PAGE_SIZE
            assert end <= room, f"sequence {b}: {end} positions in pages for {room}"

    @cached_property
    def tensors(self) -> tuple[paddle.Tensor, ...]:
        """Tables, lengths and starts as views: what changes in the arrays changes in them."""
        return tensor(self.tables_BP), tensor(self.lengths_B), tensor(self.starts)

    def advance(self) -> None:
        """The new tokens are in the pages of every layer."""
        self.lengths_B += np.diff(self.starts)


def paged_attention(
    qkv_TNd: paddle.Tensor, num_heads: int, pages: KVPages, layer: int, batch: PagedBatch
) -> paddle.Tensor:
    """Append the new tokens of all sequences and attend; the result is [T, H * d]. No gradient."""
    pool = pages.layers[layer]
    T, N, _ = qkv_TNd.shape
    assert batch.num_tokens == T, f"{T} tokens for a batch of {batch.num_tokens}"
    assert N - num_heads == 2 * pool.shape[1], f"{N} heads, {pool.shape[1]} key heads in a page"
    if pages.raw:
        code = FORMATS.index(pages.format)
        return library.call(
            "paged_attention_forward", qkv_TNd, pool, *batch.tensors, num_heads, code
        )
    return _plain(qkv_TNd, num_heads, view(pool), batch, pages.format)


def _plain(
    qkv_TNd: paddle.Tensor, H: int, pool: np.ndarray, batch: PagedBatch, format: str
) -> paddle.Tensor:
    """The same in numpy; `pool` is [pages, G, 2, 64, d]."""
    qkv = rounded(view(qkv_TNd), format)
    T, N, d = qkv.shape
    G = (N - H) // 2
    out_TD = empty((T, H * d), qkv_TNd)
    out = view(out_TD).reshape(T, G, H // G, d)
    for b, length in enumerate(batch.lengths_B):
        first, end = batch.starts[b : b + 2]
        new, total = slice(first, end), length + end - first
        if first == end:
            continue
        positions = np.arange(length, total)
        ids = batch.tables_BP[b]
        key_values = qkv[new, H:].reshape(-1, 2, G, d).swapaxes(1, 2)
        pool[ids[positions // PAGE_SIZE], :, :, positions % PAGE_SIZE] = key_values
        seen = pool[ids[: pages_for(total)]].transpose(1, 2, 0, 3, 4).reshape(G, 2, -1, d)
        query = qkv[new, :H].reshape(-1, G, H // G, d)
        block, starts = Block(0, len(positions), 0), np.zeros(len(positions), np.int64)
        for head in range(G):
            keys, values = np.ascontiguousarray(seen[head, :, :total])
            output, _ = attend_block(query[:, head], keys, values, block, starts)
            out[new, head] = output.transpose(1, 0, 2)
    return out_TD
