"""Mixture-of-experts layer: route each group of rows in its pool, then one pass over all experts.

    x [T, D]  = | tokens of group 0 | tokens of group 1 | ...        groups as the plan lists them
                  route in pool 0     route in pool 1
                  ids [T0, K0]        ids [T1, K1]                   global expert ids
                \\_______________________________________/
                   dispatch -> grouped MLP -> unpermute  + shared experts

The pool's router rows and biases are gathered before the product. Masking the scores of other
experts afterwards would give the same routing, but other last bits than the extracted model.
"""

import numpy as np
import paddle

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.models.init import parameter
from paddle_ernie.models.mlp import MLP
from paddle_ernie.models.plan import ExpertGroup
from paddle_ernie.models.rows import RowInputs
from paddle_ernie.models.stats import RouterRecorder, RouterStats, mean_entropy
from paddle_ernie.ops.arrays import tensor, view
from paddle_ernie.ops.grouped_linear import grouped_linear
from paddle_ernie.ops.linear import linear_transposed
from paddle_ernie.ops.numerics import Numerics
from paddle_ernie.ops.permute import dispatch, permute, unpermute
from paddle_ernie.ops.router import Routing, route
from paddle_ernie.ops.swiglu import swiglu


class MoE(paddle.nn.Layer):
    """Routed experts of layer `layer`, plus shared ones as one MLP."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        D, F, E = config.hidden_size, config.moe_intermediate_size, config.moe_num_experts
        self.layer = layer
        self.num_experts = E
        self.gate = parameter(self, E, D)
        self.correction_bias = parameter(self, E)
        self.correction_bias.stop_gradient = True
        self.correction_bias.trainable = False
        self.experts_gate_up_proj = parameter(self, E, D, 2 * F)
        self.experts_down_proj = parameter(self, E, F, D)
        shared = config.moe_num_shared_experts
        self.shared_experts = MLP(D, F * shared) if shared else None

    def forward(
        self,
        x_TD: paddle.Tensor,
        residual_TD: paddle.Tensor,
        groups: tuple[ExpertGroup, ...],
        rows: RowInputs,
        recorder: RouterRecorder | None,
        balance: bool,
    ) -> tuple[paddle.Tensor, paddle.Tensor | None]:
        """(residual + experts [T, D], sum over rows of the balance loss if asked for)."""
        ids, weights, probabilities, balance_losses = [], [], [], []
        for group, x in zip(groups, self._split(x_TD, groups, rows.seq_len), strict=True):
            routing = self._route(x, group, rows.numerics.exact)
            chosen = routing.ids
            ids.append(chosen if group.experts is None else group.experts[chosen])
            weights.append(routing.weights.reshape([-1]))
            probabilities.append(view(routing.probabilities))
            if balance:
                balance_losses.append(balance_loss(routing.probabilities, chosen, rows.seq_len))
        to = dispatch(ids, self.num_experts)
        if recorder is not None:
            entropy = mean_entropy(probabilities)
            recorder.record(RouterStats(self.layer, to.counts, entropy, tuple(ids)))
        flat_weights = weights[0] if len(weights) == 1 else paddle.concat(weights)
        routed, numerics = permute(x_TD, to), rows.numerics
        hidden = swiglu(grouped_linear(routed, to.counts, self.experts_gate_up_proj, numerics))
        outputs = grouped_linear(hidden, to.counts, self.experts_down_proj, numerics)
        bases = [residual_TD]
        if self.shared_experts is not None:
            bases.append(self.shared_experts(x_TD, numerics))
        balance_sum = paddle.add_n(balance_losses) if balance else None
        return unpermute(outputs, flat_weights, to, *bases), balance_sum

    @staticmethod
    def _split(
        x_TD: paddle.Tensor, groups: tuple[ExpertGroup, ...], seq_len: int
    ) -> list[paddle.Tensor]:
        if len(groups) == 1:
            return [x_TD]
        return paddle.split(x_TD, [len(group.rows) * seq_len for group in groups])

    def _route(self, x_TD: paddle.Tensor, group: ExpertGroup, numerics: Numerics) -> Routing:
        """Ids are those within the pool."""
        gate, bias = self.gate, self.correction_bias
        if group.experts is not None:
            # A pool's rows are new tensors each time: no packed form of them to keep.
            pool = tensor(group.experts)
            gate, bias = paddle.index_select(gate, pool), paddle.index_select(bias, pool)
            numerics = Numerics()
        return route(linear_transposed(x_TD, gate, numerics), bias, group.top_k)


def balance_loss(
    probability_TE: paddle.Tensor, chosen_TK: np.ndarray, seq_len: int
) -> paddle.Tensor:
    """Sum over rows of sum_e f_e P_e (DeepSeek-V3, section 2.1.2); 1 a row when balanced.

    f_e: share of the row's choices that fell on expert e, times the number of experts.
    P_e: the row's mean probability of e. The gradient flows through P only.
    """
    experts = probability_TE.shape[1]
    rows, top_k = len(chosen_TK) // seq_len, chosen_TK.shape[1]
    row_of_choice = np.repeat(np.arange(rows), seq_len * top_k)
    counts_RE = np.bincount(
        row_of_choice * experts + chosen_TK.reshape(-1), minlength=rows * experts
    ).reshape(rows, experts)
    share_RE = (counts_RE * (experts / (top_k * seq_len))).astype(np.float32)
    mean_RE = probability_TE.reshape([rows, seq_len, experts]).mean(axis=1)
    return (mean_RE * tensor(share_RE)).sum()
