"""One inference step of a ragged batch, put together from the model's operators.

    ids [T] -> embedding -> layers (attention over pages, MLP or experts) -> norm -> head of `rows`

Runs where the compiled step (`ops.model_step`) does not: without a compiler. Called by
`inference.InferenceModel`.
"""

import numpy as np
import paddle

from paddle_ernie.models.attention import Attention
from paddle_ernie.models.block import Block
from paddle_ernie.models.mlp import MLP
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.moe import MoE
from paddle_ernie.ops.add import add
from paddle_ernie.ops.arrays import tensor, view
from paddle_ernie.ops.embedding import embedding
from paddle_ernie.ops.grouped_linear import grouped_linear
from paddle_ernie.ops.linear import linear, linear_transposed
from paddle_ernie.ops.numerics import Numerics, PackCache, Recipe
from paddle_ernie.ops.paged_attention import KVPages, PagedBatch, paged_attention
from paddle_ernie.ops.permute import dispatch, permute, unpermute
from paddle_ernie.ops.rms_norm import add_rms_norm, rms_norm
from paddle_ernie.ops.rope import rope, rope_rotations
from paddle_ernie.ops.router import route
from paddle_ernie.ops.swiglu import swiglu


class ComposedStep:
    """The model must not change as long as this is used."""

    def __init__(self, model: ErnieMoeModel, recipe: Recipe) -> None:
        self._model = model
        self._numerics = Numerics(recipe, PackCache())

    @paddle.no_grad()
    def step(
        self,
        ids_T: np.ndarray,
        pages: KVPages,
        batch: PagedBatch,
        rows: np.ndarray,
        routes: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """(logits of `rows` [R, V], chosen experts [T, MoE layers, K], or none of them)."""
        model, config, chosen = self._model, self._model.config, []
        positions_T = token_positions(batch)
        rotations = rope_rotations(positions_T, config.dim_per_head, config.rope_theta)
        x_TD = embedding(ids_T, model.embed_tokens)
        for index, block in enumerate(model.layers):
            normed = rms_norm(x_TD, block.input_layernorm, block.eps)
            qkv = self._qkv(normed, block.self_attn, rotations)
            out = paged_attention(qkv, config.num_attention_heads, pages, index, batch)
            attended = linear(out, block.self_attn.o_proj, self._numerics)
            x_TD, normed = add_rms_norm(x_TD, attended, block.post_attention_layernorm, block.eps)
            x_TD = self._feed_forward(x_TD, normed, block, chosen)
        wanted_RD = tensor(np.ascontiguousarray(view(x_TD)[rows]))
        normed = rms_norm(wanted_RD, model.norm, config.rms_norm_eps)
        head = model.embed_tokens if model.lm_head is None else model.lm_head
        logits = view(linear_transposed(normed, head, self._numerics.high))
        return logits, np.stack(chosen, axis=1) if routes else np.empty((0, 0, 0), np.int64)

    def _qkv(
        self, x_TD: paddle.Tensor, attention: Attention, rotations: np.ndarray
    ) -> paddle.Tensor:
        rotated = attention.num_heads + attention.num_kv_heads
        heads = rotated + attention.num_kv_heads
        qkv = linear(x_TD, attention.qkv_proj, self._numerics)
        return rope(qkv.reshape([-1, heads, attention.head_dim]), rotations, rotated)

    def _feed_forward(
        self, x_TD: paddle.Tensor, normed: paddle.Tensor, block: Block, chosen: list[np.ndarray]
    ) -> paddle.Tensor:
        if not block.is_moe:
            return add(x_TD, self._mlp(normed, block.mlp))
        return self._experts(x_TD, normed, block.mlp, chosen)

    def _mlp(self, x_TD: paddle.Tensor, mlp: MLP) -> paddle.Tensor:
        return mlp(x_TD, self._numerics)

    def _experts(
        self, x_TD: paddle.Tensor, normed: paddle.Tensor, moe: MoE, chosen: list[np.ndarray]
    ) -> paddle.Tensor:
        numerics = self._numerics
        scores = linear_transposed(normed, moe.gate, numerics.exact)
        routing = route(scores, moe.correction_bias, self._model.config.moe_k)
        chosen.append(routing.ids)
        to = dispatch([routing.ids], moe.num_experts)
        slots = permute(normed, to)
        hidden = swiglu(grouped_linear(slots, to.counts, moe.experts_gate_up_proj, numerics))
        outputs = grouped_linear(hidden, to.counts, moe.experts_down_proj, numerics)
        bases = [x_TD]
        if moe.shared_experts is not None:
            bases.append(self._mlp(normed, moe.shared_experts))
        return unpermute(outputs, routing.weights.reshape([-1]), to, *bases)


def token_positions(batch: PagedBatch) -> np.ndarray:
    """int64 [T]: the position of each new token in its sequence."""
    new_B = np.diff(batch.starts)
    return np.arange(batch.num_tokens) + np.repeat(batch.lengths_B - batch.starts[:-1], new_B)
