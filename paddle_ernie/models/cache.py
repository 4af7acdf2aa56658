"""Key-value cache for generation. Made by `decoding.generate`, passed to `model.logits`.

Each layer keeps the keys and values of the rows that run it. All rows have the same length; a plan
must give every layer the same rows in every call. Sequences of different lengths are the business
of `ops.paged_attention`, on which this is built.
"""

import paddle

from paddle_ernie.ops.paged_attention import KVPages, PagedBatch, paged_attention, pages_for


class LayerCache:
    """Keys and values of one layer."""

    def __init__(self, capacity: int) -> None:
        self.length = 0
        self.capacity = capacity
        self._pages: KVPages | None = None
        self._tables: list[list[int]] = []
        self._batch: PagedBatch | None = None

    def attend(
        self, qkv_BSNd: paddle.Tensor, num_heads: int, format: str = "fp32"
    ) -> paddle.Tensor:
        """Append S new positions, and let them attend to everything up to themselves."""
        B, S, N, d = qkv_BSNd.shape
        if self._pages is None:
            self._allocate(qkv_BSNd, (N - num_heads) // 2, format)
        assert len(self._tables) == B, f"cache of {len(self._tables)} rows got {B}"
        end = self.length + S
        assert end <= self.capacity, f"cache of {self.capacity} positions got {end}"
        if self._batch is None or self._batch.num_tokens != B * S:
            self._batch = PagedBatch(self._tables, [self.length] * B, [S] * B)
        qkv_TNd = qkv_BSNd.reshape([B * S, N, d])
        out_TD = paged_attention(qkv_TNd, num_heads, self._pages, 0, self._batch)
        self._batch.advance()
        self.length = end
        return out_TD.reshape([B, S, num_heads * d])

    def _allocate(self, qkv_BSNd: paddle.Tensor, num_kv_heads: int, format: str) -> None:
        rows, per_row = qkv_BSNd.shape[0], pages_for(self.capacity)
        self._pages = KVPages(
            1, rows * per_row, num_kv_heads, qkv_BSNd.shape[3], format=format, dtype=qkv_BSNd.dtype
        )
        self._tables = [self._pages.allocate(per_row) for _ in range(rows)]


class KVCache:
    """One LayerCache per decoder layer. `capacity` is the longest sequence it can hold."""

    def __init__(self, num_layers: int, capacity: int) -> None:
        self.layers = [LayerCache(capacity) for _ in range(num_layers)]
        self.length = 0
        """Positions seen so far, also by layers that a plan skips."""
