"""Measure on calibration text which experts and layers matter. Called by the extract stage.

    experts   reap:      mean over the tokens routed to it of router weight x L2 norm of its output
                         (REAP, arXiv:2510.13999)
              frequency: share of the tokens that are routed to it
    layers    increase of the loss when only that layer is skipped

Experts are scored with the full model running, from the inputs each MoE layer really gets.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol

import numpy as np
import paddle

from paddle_ernie.elastic.ranking import Importance
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.elastic.supernet import uniform_plan
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.moe import MoE
from paddle_ernie.ops.arrays import view
from paddle_ernie.ops.grouped_linear import grouped_linear
from paddle_ernie.ops.linear import linear_transposed
from paddle_ernie.ops.permute import dispatch, permute
from paddle_ernie.ops.router import route
from paddle_ernie.ops.swiglu import swiglu
from paddle_ernie.utils.errors import InputError

ExpertMethod = Literal["reap", "frequency"]


class CalibrationRows(Protocol):
    """Rows of one forward pass, all [B, S]; `data.Batch` is one."""

    @property
    def input_ids(self) -> np.ndarray: ...
    @property
    def labels(self) -> np.ndarray: ...
    @property
    def doc_ids(self) -> np.ndarray: ...
    @property
    def position_ids(self) -> np.ndarray: ...


def measure_importance(
    model: ErnieMoeModel,
    batches: Sequence[CalibrationRows],
    method: ExpertMethod,
    *,
    before_pass: Callable[[], None] = lambda: None,
) -> Importance:
    """Scores of all experts and layers; layers + 1 passes over the batches.

    `before_pass` is called before each of them; what it raises ends the measurement.
    """
    full = Subnet.full(model.config)
    before_pass()
    with _watch_experts(model) as tallies:
        full_loss = mean_loss(model, batches, full)
    layer_scores = []
    for layer in full.layers:
        before_pass()
        layer_scores.append(mean_loss(model, batches, _without(full, layer)) - full_loss)
    expert_scores = tuple(
        tallies[layer].scores(method) if layer in tallies else None for layer in full.layers
    )
    return Importance(method, tuple(layer_scores), expert_scores)


def mean_loss(model: ErnieMoeModel, batches: Sequence[CalibrationRows], subnet: Subnet) -> float:
    """Nats per target of `subnet` on all batches."""
    nats, targets, numerics = 0.0, 0, model.numerics()
    with paddle.no_grad():
        for rows in batches:
            output = model.loss(
                rows.input_ids,
                rows.labels,
                rows.doc_ids,
                rows.position_ids,
                plan=uniform_plan(subnet, len(rows.input_ids), model.config),
                denominator=1.0,
                numerics=numerics,
            )
            nats += float(output.token_loss.sum(dtype=np.float64))
            targets += int((rows.labels >= 0).sum())
    if not targets:
        raise InputError("calibration: the text has no token to predict; give more of it")
    return nats / targets


class ExpertTally:
    """Sums over the tokens that one MoE layer has routed."""

    def __init__(self, num_experts: int) -> None:
        self.weighted_norms_E = np.zeros(num_experts)
        self.loads_E = np.zeros(num_experts, np.int64)
        self.tokens = 0

    def add(self, moe: MoE, x_TD: paddle.Tensor, top_k: int) -> None:
        """Route tokens to all experts and add what each expert answers."""
        routing = route(linear_transposed(x_TD, moe.gate), moe.correction_bias, top_k)
        to = dispatch([routing.ids], moe.num_experts)
        hidden_NF = swiglu(grouped_linear(permute(x_TD, to), to.counts, moe.experts_gate_up_proj))
        outputs_ND = grouped_linear(hidden_NF, to.counts, moe.experts_down_proj)
        norms_N = np.linalg.norm(view(outputs_ND).astype(np.float64), axis=1)
        weights_N = view(routing.weights).reshape(-1)[to.sources]
        experts_N = np.repeat(np.arange(moe.num_experts), to.counts)
        self.weighted_norms_E += np.bincount(experts_N, norms_N * weights_N, moe.num_experts)
        self.loads_E += to.counts
        self.tokens += len(routing.ids)

    def scores(self, method: ExpertMethod) -> np.ndarray:
        """float64 [E]; an expert that no token was routed to scores 0."""
        if method == "frequency":
            return self.loads_E / max(self.tokens, 1)
        return self.weighted_norms_E / np.maximum(self.loads_E, 1)


@contextmanager
def _watch_experts(model: ErnieMoeModel) -> Iterator[dict[int, ExpertTally]]:
    """While open, every MoE layer adds its input to its tally (by layer index) as it runs."""
    moes = {layer: model.layers[layer].mlp for layer in model.config.moe_layers}
    tallies = {layer: ExpertTally(model.config.moe_num_experts) for layer in moes}

    def add(moe: MoE, inputs: tuple[paddle.Tensor, ...]) -> None:
        tallies[moe.layer].add(moe, inputs[0], model.config.moe_k)

    hooks = [moe.register_forward_pre_hook(add) for moe in moes.values()]
    try:
        yield tallies
    finally:
        for hook in hooks:
            hook.remove()


def _without(subnet: Subnet, layer: int) -> Subnet:
    kept = [index for index, other in enumerate(subnet.layers) if other != layer]
    return Subnet(
        layers=tuple(subnet.layers[index] for index in kept),
        experts=tuple(subnet.experts[index] for index in kept),
        top_k=tuple(subnet.top_k[index] for index in kept),
    )
