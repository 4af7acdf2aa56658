"""Dense key-value cache for generation. Made by `decoding.generate`, passed to `model.logits`.

Each layer keeps the keys and values of the rows that run it, [rows, G, capacity, d]. All rows have
the same length; a plan must give every layer the same rows in every call.
"""

import numpy as np
import paddle

from paddle_ernie.ops.arrays import empty, view
from paddle_ernie.ops.attention import Block, attend_block


class LayerCache:
    """Keys and values of one layer."""

    def __init__(self, capacity: int) -> None:
        self.length = 0
        self.capacity = capacity
        self._keys_BGLd: np.ndarray | None = None
        self._values_BGLd: np.ndarray | None = None

    def attend(self, qkv_BSNd: paddle.Tensor, num_heads: int) -> paddle.Tensor:
        """Append S new positions, and let them attend to everything up to themselves."""
        qkv = view(qkv_BSNd)
        B, S, N, d = qkv.shape
        G = (N - num_heads) // 2
        self._append(qkv[:, :, num_heads:])
        query = qkv[:, :, :num_heads].reshape(B, S, G, num_heads // G, d)
        out_BSD = empty((B, S, num_heads * d), qkv_BSNd)
        out = view(out_BSD).reshape(query.shape)
        # The S queries are the last ones of a sequence that began at position 0.
        block, starts = Block(0, S, 0), np.zeros(S, np.int64)
        for row, head in np.ndindex(B, G):
            keys = self._keys_BGLd[row, head, : self.length]
            values = self._values_BGLd[row, head, : self.length]
            output, _ = attend_block(query[row, :, head], keys, values, block, starts)
            out[row, :, head] = output.transpose(1, 0, 2)
        return out_BSD

    def _append(self, keys_values_BSNd: np.ndarray) -> None:
        B, S, N, d = keys_values_BSNd.shape
        if self._keys_BGLd is None:
            self._keys_BGLd = np.empty((B, N // 2, self.capacity, d), keys_values_BSNd.dtype)
            self._values_BGLd = np.empty_like(self._keys_BGLd)
        assert len(self._keys_BGLd) == B, f"cache of {len(self._keys_BGLd)} rows got {B}"
        end = self.length + S
        assert end <= self.capacity, f"cache of {self.capacity} positions got {end}"
        by_head = keys_values_BSNd.transpose(0, 2, 1, 3)
        self._keys_BGLd[:, :, self.length : end] = by_head[:, : N // 2]
        self._values_BGLd[:, :, self.length : end] = by_head[:, N // 2 :]
        self.length = end


class KVCache:
    """One LayerCache per decoder layer. `capacity` is the longest sequence it can hold."""

    def __init__(self, num_layers: int, capacity: int) -> None:
        self.layers = [LayerCache(capacity) for _ in range(num_layers)]
        self.length = 0
        """Positions seen so far, also by layers that a plan skips."""
