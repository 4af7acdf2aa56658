"""ErnieMoeModel: embedding, decoder layers, final norm, output layer, prediction block.

    input_ids [B, S] -> embedding [B, S, D]
      for each layer: rows of the plan --split_rows--> block --merge_rows--> [B, S, D]
      -> norm -> linear_cross_entropy | logits          (the head is the embedding if tied)
      -> prediction block -> the same norm and head

Training calls `loss`, everything that scores or generates calls `logits`. Both take a ForwardPlan;
without one every row runs everything. Inputs are numpy arrays. Letters: B rows, S tokens per row,
T = B * S, D width, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import paddle

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.models.block import Block
from paddle_ernie.models.cache import KVCache
from paddle_ernie.models.init import initialise, parameter
from paddle_ernie.models.mtp import MTPBlock, mtp_inputs
from paddle_ernie.models.plan import ForwardPlan, full_plan
from paddle_ernie.models.rows import RowInputs
from paddle_ernie.models.runner import LayerRunner
from paddle_ernie.models.stats import RouterRecorder, RouterStats
from paddle_ernie.ops.embedding import embedding
from paddle_ernie.ops.linear import linear_transposed
from paddle_ernie.ops.linear_cross_entropy import linear_cross_entropy
from paddle_ernie.ops.numerics import FP32, Numerics, PackCache
from paddle_ernie.ops.rms_norm import rms_norm
from paddle_ernie.ops.rope import rope_rotations


@dataclass(frozen=True)
class LossOutput:
    """What one forward pass of training returns."""

    total: paddle.Tensor
    """Scalar to call backward() on: main loss / denominator, plus the weighted others."""
    token_loss: np.ndarray
    """float32 [B, S], nats of the next token; 0 where there is no target."""
    mtp_loss_sum: float
    """Nats of the token after the next, summed over targets; 0 if not computed."""
    balance_loss: float
    """Sequence-level balance loss, mean over rows, sum over layers; 0 if not computed."""
    router: tuple[RouterStats, ...]
    """One per MoE layer that ran."""


class ErnieMoeModel(paddle.nn.Layer):
    """The model of a ModelConfig, whose vocab_size must be set.

    The same seed gives the same weights; seed None leaves matrices zero, for a checkpoint to fill.
    """

    def __init__(self, config: ModelConfig, *, seed: int | None = 0) -> None:
        super().__init__()
        assert config.vocab_size is not None, "vocab_size must be set before the model is built"
        self.config = config
        self.recipe = FP32
        """How matrix products are rounded; every forward pass follows it."""
        V, D = config.vocab_size, config.hidden_size
        self.embed_tokens = parameter(self, V, D)
        self.layers = paddle.nn.LayerList(
            [Block(config, layer) for layer in range(config.num_hidden_layers)]
        )
        self.norm = parameter(self, D, value=1.0)
        self.lm_head = None if config.tie_word_embeddings else parameter(self, V, D)
        self.mtp = MTPBlock(config) if config.num_nextn_predict_layers else None
        if seed is not None:
            initialise(self, deviation=config.initializer_range, seed=seed)

    def loss(
        self,
        input_ids: np.ndarray,
        labels: np.ndarray,
        doc_ids: np.ndarray,
        position_ids: np.ndarray,
        *,
        plan: ForwardPlan | None = None,
        denominator: float,
        mtp_weight: float = 0.0,
        mtp_denominator: float | None = None,
        balance_weight: float = 0.0,
        recompute: bool = False,
        numerics: Numerics | None = None,
    ) -> LossOutput:
        """Losses of a batch; all arrays [B, S].

        `denominator` is the number of targets of the whole optimizer step, so that micro-batches
        add up; `mtp_denominator` (default: the same) that of the prediction block. `numerics`
        (default: the model's recipe) keeps packed weights between calls; see `numerics`.
        """
        rows, recorder = self._row_inputs(doc_ids, position_ids, numerics), RouterRecorder()
        runner = LayerRunner(
            rows, recorder=recorder, balance=balance_weight > 0, recompute=recompute
        )
        hidden_BSD = self._run_layers(input_ids, plan, runner)
        total, token_loss = self._head_loss(hidden_BSD, labels, 1 / denominator, rows.numerics)
        balance_loss, mtp_loss_sum = 0.0, 0.0
        if runner.balance_sums:
            balance = paddle.add_n(runner.balance_sums) / len(input_ids)
            balance_loss, total = float(balance), total + balance_weight * balance
        if mtp_weight > 0:
            weight = mtp_weight / (mtp_denominator or denominator)
            mtp_total, mtp_loss_sum = self._mtp_loss(
                hidden_BSD, input_ids, labels, doc_ids, weight, runner
            )
            total = total + mtp_total
        return LossOutput(total, token_loss, mtp_loss_sum, balance_loss, recorder.all())

    def logits(
        self,
        input_ids: np.ndarray,
        doc_ids: np.ndarray | None = None,
        position_ids: np.ndarray | None = None,
        *,
        plan: ForwardPlan | None = None,
        cache: KVCache | None = None,
        last_only: bool = False,
        numerics: Numerics | None = None,
    ) -> paddle.Tensor:
        """[B, S, V], or [B, 1, V] of the last position. With a cache, `input_ids` continue it."""
        B, S = input_ids.shape
        if position_ids is None:
            first = cache.length if cache is not None else 0
            position_ids = np.broadcast_to(np.arange(first, first + S), (B, S))
        rows = self._row_inputs(doc_ids, position_ids, numerics)
        runner = LayerRunner(rows, cache=cache)
        hidden_BSD = self._run_layers(input_ids, plan, runner)
        if cache is not None:
            cache.length += S
        if last_only:
            hidden_BSD = hidden_BSD[:, -1:]
        logits = linear_transposed(
            self._normed(hidden_BSD), self._head_weight(), rows.numerics.high
        )
        return logits.reshape([*hidden_BSD.shape[:2], self.config.vocab_size])

    def numerics(self, *, keep: bool = True) -> Numerics:
        """For forward passes between which no weight changes: weights are packed once.

        `keep` False is for a single one, and saves the memory of the packed weights.
        """
        return Numerics(self.recipe, PackCache(keep=keep))

    def correction_biases(self) -> dict[int, paddle.Tensor]:
        """Layer index -> fp32 [E] parameter without gradient, for load balancing."""
        return {i: self.layers[i].mlp.correction_bias for i in self.config.moe_layers}

    def _row_inputs(
        self, doc_ids: np.ndarray | None, position_ids: np.ndarray, numerics: Numerics | None
    ) -> RowInputs:
        theta, width = self.config.rope_theta, self.config.dim_per_head
        rotations = rope_rotations(position_ids.reshape(-1), width, theta)
        return RowInputs(
            doc_ids, rotations, position_ids.shape[1], numerics or self.numerics(keep=False)
        )

    def _run_layers(
        self, input_ids: np.ndarray, plan: ForwardPlan | None, runner: LayerRunner
    ) -> paddle.Tensor:
        config = self.config
        if plan is None:
            plan = full_plan(len(input_ids), config.num_hidden_layers, config.moe_k)
        assert plan.num_rows == len(input_ids), f"plan of {plan.num_rows}, {len(input_ids)} rows"
        assert len(plan.layers) == len(self.layers), f"plan of {len(plan.layers)} layers"
        hidden_BSD = self._embed(input_ids)
        for index, (block, layer_plan) in enumerate(zip(self.layers, plan.layers, strict=True)):
            hidden_BSD = runner.run(index, block, layer_plan, hidden_BSD)
        return hidden_BSD

    def _embed(self, ids_BS: np.ndarray) -> paddle.Tensor:
        embedded_TD = embedding(ids_BS.reshape(-1), self.embed_tokens)
        return embedded_TD.reshape([*ids_BS.shape, self.config.hidden_size])

    def _head_weight(self) -> paddle.Tensor:
        return self.embed_tokens if self.lm_head is None else self.lm_head

    def _normed(self, hidden_BSD: paddle.Tensor) -> paddle.Tensor:
        flat_TD = hidden_BSD.reshape([-1, self.config.hidden_size])
        return rms_norm(flat_TD, self.norm, self.config.rms_norm_eps)

    def _head_loss(
        self, hidden_BSD: paddle.Tensor, labels: np.ndarray, weight: float, numerics: Numerics
    ) -> tuple[paddle.Tensor, np.ndarray]:
        """(weight * sum of the losses, loss of each token [B, S])."""
        weights_T = np.full(labels.size, weight, np.float32)
        total, losses_T = linear_cross_entropy(
            self._normed(hidden_BSD), self._head_weight(), labels.reshape(-1), weights_T, numerics
        )
        return total, losses_T.reshape(labels.shape)

    def _mtp_loss(
        self,
        hidden_BSD: paddle.Tensor,
        input_ids: np.ndarray,
        labels: np.ndarray,
        doc_ids: np.ndarray,
        weight: float,
        runner: LayerRunner,
    ) -> tuple[paddle.Tensor, float]:
        """(weight * sum, sum) of the prediction block's losses; every row runs it."""
        assert self.mtp is not None, "mtp_weight needs num_nextn_predict_layers = 1"
        next_ids, next_labels = mtp_inputs(input_ids, labels, doc_ids)
        flat = [-1, self.config.hidden_size]
        hidden_TD, next_TD = hidden_BSD.reshape(flat), self._embed(next_ids).reshape(flat)
        predicted = runner.run_block(
            lambda hidden, following: self.mtp(hidden, following, runner.rows), hidden_TD, next_TD
        )
        total, losses = self._head_loss(predicted, next_labels, weight, runner.rows.numerics)
        return total, float(losses.sum(dtype=np.float64))
