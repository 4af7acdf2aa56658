"""Attention layer: grouped queries, interleaved RoPE, documents or a key-value cache."""

import paddle

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.models.cache import LayerCache
from paddle_ernie.models.init import parameter
from paddle_ernie.models.rows import RowInputs
from paddle_ernie.ops.attention import attention
from paddle_ernie.ops.linear import linear
from paddle_ernie.ops.rope import rope


class Attention(paddle.nn.Layer):
    """Queries, keys and values come from one matrix, heads in that order."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = config.dim_per_head
        query_width = self.num_heads * self.head_dim
        self.qkv_proj = parameter(
            self, config.hidden_size, query_width + 2 * self.num_kv_heads * self.head_dim
        )
        self.o_proj = parameter(self, query_width, config.hidden_size)

    def forward(
        self, x_TD: paddle.Tensor, rows: RowInputs, cache: LayerCache | None
    ) -> paddle.Tensor:
        """[T, D] -> [T, D], with T = rows * S tokens."""
        T, S = x_TD.shape[0], rows.seq_len
        heads = self.num_heads + 2 * self.num_kv_heads
        qkv = linear(x_TD, self.qkv_proj, rows.numerics).reshape([T, heads, self.head_dim])
        qkv = rope(qkv, rows.rotations, self.num_heads + self.num_kv_heads)
        qkv_BSNd = qkv.reshape([T // S, S, heads, self.head_dim])
        format = rows.numerics.recipe.high.forward
        if cache is None:
            out = attention(qkv_BSNd, rows.doc_ids, self.num_heads, self.num_kv_heads, format)
        else:
            out = cache.attend(qkv_BSNd, self.num_heads, format)
        return linear(out.reshape([T, -1]), self.o_proj, rows.numerics)
