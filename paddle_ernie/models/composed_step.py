"""One inference step of a ragged batch on the model's own blocks.

    ids [T] -> embedding -> blocks (attention over pages, MLP or experts) -> norm -> head of `rows`

Runs where the compiled step (`ops.model_step`) does not: without a compiler. Called by
`inference.InferenceModel`.
"""

from dataclasses import dataclass

import numpy as np
import paddle

from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.plan import full_plan
from paddle_ernie.models.rows import RowInputs
from paddle_ernie.models.stats import RouterRecorder
from paddle_ernie.ops.arrays import tensor, view
from paddle_ernie.ops.embedding import embedding
from paddle_ernie.ops.linear import linear_transposed
from paddle_ernie.ops.numerics import Numerics, PackCache, Recipe
from paddle_ernie.ops.paged_attention import KVPages, PagedBatch, paged_attention
from paddle_ernie.ops.rms_norm import rms_norm
from paddle_ernie.ops.rope import rope_rotations


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
        model, config = self._model, self._model.config
        recorder = RouterRecorder() if routes else None
        # For the blocks all tokens are one row; which belong together, the pages know.
        inputs = RowInputs(
            None,
            rope_rotations(token_positions(batch), config.dim_per_head, config.rope_theta),
            max(len(ids_T), 1),
            self._numerics,
        )
        plan = full_plan(1, config.num_hidden_layers, config.moe_k)
        x_TD = embedding(ids_T, model.embed_tokens)
        for index, (block, layer) in enumerate(zip(model.layers, plan.layers, strict=True)):
            cache = _PagedLayer(pages, index, batch)
            x_TD, _ = block(x_TD, inputs, layer.groups, cache=cache, recorder=recorder)
        wanted_RD = tensor(np.ascontiguousarray(view(x_TD)[rows]))
        normed = rms_norm(wanted_RD, model.norm, config.rms_norm_eps)
        head = model.embed_tokens if model.lm_head is None else model.lm_head
        logits = view(linear_transposed(normed, head, self._numerics.high))
        if recorder is None:
            return logits, np.empty((0, 0, 0), np.int64)
        return logits, np.stack([stats.ids[0] for stats in recorder.all()], axis=1)


@dataclass(frozen=True)
class _PagedLayer:
    """One layer of the pages, where the model's attention looks for a cache."""

    pages: KVPages
    layer: int
    batch: PagedBatch

    def attend(self, qkv_BSNd: paddle.Tensor, num_heads: int, format: str) -> paddle.Tensor:
        """As `LayerCache.attend`; the pages' format is the recipe's."""
        assert format == self.pages.format, f"{format} products over {self.pages.format} pages"
        qkv_TNd = qkv_BSNd.reshape([-1, *qkv_BSNd.shape[2:]])
        return paged_attention(qkv_TNd, num_heads, self.pages, self.layer, self.batch)


def token_positions(batch: PagedBatch) -> np.ndarray:
    """int64 [T]: the position of each new token in its sequence."""
    new_B = np.diff(batch.starts)
    return np.arange(batch.num_tokens) + np.repeat(batch.lengths_B - batch.starts[:-1], new_B)
