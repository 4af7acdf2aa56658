"""One optimizer step on one global batch. Called by `TrainLoop`.

    global batch --> target counts (before any backward)
        for each micro-batch:  rows --> Subnets --> ForwardPlan --> loss --> backward
        gradients of all micro-batches --> norm --> clip --> AdamW --> balancing bias

Losses are sums over targets divided by the global batch's counts, so neither the size of a
micro-batch nor an uneven spread of targets over rows changes the step. When the loss or the norm
is not finite the step is skipped: weights, moments and biases stay as they are.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import paddle

from paddle_ernie.config.train import TrainConfig
from paddle_ernie.data.types import IGNORE_LABEL, Batch
from paddle_ernie.elastic.space import ElasticSpace
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.elastic.supernet import forward_plan
from paddle_ernie.elastic.work import plan_flops
from paddle_ernie.models.model import ErnieMoeModel, LossOutput
from paddle_ernie.models.mtp import mtp_inputs
from paddle_ernie.models.plan import ForwardPlan
from paddle_ernie.ops.numerics import Numerics
from paddle_ernie.train.balance import update_biases
from paddle_ernie.train.optimizer import AdamW

FULL_ROWS = "full"
"""Key of `StepResult.axes` for rows that run the full model."""


@dataclass
class Mean:
    """A weighted mean in the making: of a loss over targets, of an entropy over rows."""

    total: float = 0.0
    """Sum of weight times value."""
    weight: int = 0

    def add(self, total: float, weight: int) -> None:
        """Count more targets or rows, whose values add up to `total`."""
        self.total += total
        self.weight += weight

    @property
    def mean(self) -> float:
        """NaN while nothing was counted."""
        return self.total / self.weight if self.weight else math.nan


@dataclass
class StepResult:
    """What one step did."""

    tokens: int
    """Input tokens of the global batch."""
    targets: int
    """Positions with a target."""
    main: Mean = field(default_factory=Mean)
    """Next-token loss of all rows."""
    axes: dict[str, Mean] = field(default_factory=dict)
    """The same by kind of row: `full`, and for each axis the rows reduced along it."""
    mtp: Mean = field(default_factory=Mean)
    """Multi-token-prediction loss."""
    balance: Mean = field(default_factory=Mean)
    """Sequence-level balance loss over rows, unweighted."""
    loads: dict[int, np.ndarray] = field(default_factory=dict)
    """Layer -> int64 [E], tokens each expert processed."""
    entropy: dict[int, Mean] = field(default_factory=dict)
    """Layer -> normalised routing entropy over the rows that ran the layer."""
    flops: float = 0.0
    """Operations of the rows' own sub-models, forward and backward."""
    subnets: list[Subnet] = field(default_factory=list)
    """The sub-model of each row."""
    learning_rate: float = 0.0
    grad_norm: float = math.nan
    """Before clipping."""
    applied: bool = False
    """False: the loss or a gradient was not finite, and the step was skipped."""


class Stepper:
    """Everything a step needs besides its batch."""

    def __init__(
        self,
        model: ErnieMoeModel,
        optimizer: AdamW,
        train: TrainConfig,
        *,
        seed: int,
        space: ElasticSpace | None,
        subnet: Subnet | None = None,
    ) -> None:
        """Rows run sub-models drawn from `space`; without one, all run `subnet` (the full model
        unless given)."""
        self.model = model
        self.optimizer = optimizer
        self.train = train
        self.seed = seed
        self.space = space
        self._fixed = subnet or Subnet.full(model.config)

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # reported by `applied`
    def train_step(self, batch: Batch, learning_rate: float) -> StepResult:
        """Forward, backward and update on a global batch."""
        # Should an operator draw from Paddle's generator: the same numbers after a resume.
        paddle.seed(self.seed + int(batch.row_ids[0]))
        result = StepResult(batch.input_ids.size, batch.num_targets, learning_rate=learning_rate)
        mtp_targets = self._mtp_targets(batch)
        # Packed weights serve all micro-batches of the step.
        numerics = self.model.numerics(keep=len(batch) > self.train.micro_rows)
        for micro in micro_batches(batch, self.train.micro_rows):
            subnets = self._draw_subnets(micro)
            plan = forward_plan(subnets, self.model.config)
            output = self._forward(micro, plan, batch, mtp_targets, numerics)
            output.total.backward()
            result.flops += plan_flops(
                plan, self.model.config, micro.input_ids.shape[1], backward=True
            )
            self._collect_losses(result, micro, subnets, output)
            _collect_routing(result, plan, output)
        result.mtp.weight = mtp_targets
        self._update(result)
        return result

    def _forward(
        self,
        micro: Batch,
        plan: ForwardPlan,
        batch: Batch,
        mtp_targets: int,
        numerics: Numerics,
    ) -> LossOutput:
        """Loss of one micro-batch, as a share of the global batch's."""
        return self.model.loss(
            micro.input_ids,
            micro.labels,
            micro.doc_ids,
            micro.position_ids,
            plan=plan,
            denominator=float(max(batch.num_targets, 1)),
            mtp_weight=self.train.mtp_loss_weight if self.model.mtp is not None else 0.0,
            mtp_denominator=float(max(mtp_targets, 1)),
            # The model averages over the rows it is given; together the shares average over all.
            balance_weight=self.train.moe_balance_loss_weight * len(micro) / len(batch),
            recompute=self.train.recompute,
            numerics=numerics,
        )

    def _mtp_targets(self, batch: Batch) -> int:
        return count_mtp_targets(batch) if self.model.mtp is not None else 0

    def _draw_subnets(self, micro: Batch) -> list[Subnet]:
        if self.space is None:
            return [self._fixed] * len(micro)
        return [self.space.sample(self.seed, int(row_id)) for row_id in micro.row_ids]

    def _collect_losses(
        self, result: StepResult, micro: Batch, subnets: list[Subnet], output: LossOutput
    ) -> None:
        nats_B = output.token_loss.sum(axis=1, dtype=np.float64)
        targets_B = (micro.labels != IGNORE_LABEL).sum(axis=1)
        for subnet, nats, targets in zip(subnets, nats_B, targets_B, strict=True):
            axes = self.space.axes(subnet) if self.space is not None else ()
            result.main.add(float(nats), int(targets))
            for axis in axes or (FULL_ROWS,):
                result.axes.setdefault(axis, Mean()).add(float(nats), int(targets))
        result.subnets += subnets
        result.mtp.total += output.mtp_loss_sum
        result.balance.add(output.balance_loss * len(micro), len(micro))

    def _update(self, result: StepResult) -> None:
        """Apply the accumulated gradients, unless something is not finite."""
        result.grad_norm = self.optimizer.gradient_norm()
        result.applied = math.isfinite(result.main.total) and math.isfinite(result.grad_norm)
        if not result.applied:
            self.optimizer.drop_gradients()
            return
        self.optimizer.step(result.learning_rate, result.grad_norm)
        update_biases(
            self.model.correction_biases(), result.loads, self.train.moe_bias_update_speed
        )


def micro_batches(batch: Batch, rows: int) -> Iterator[Batch]:
    """Consecutive pieces of `rows` rows."""
    for start in range(0, len(batch), rows):
        yield batch.rows(start, start + rows)


def count_mtp_targets(batch: Batch) -> int:
    """Positions whose token after the next is a target of the multi-token-prediction block."""
    labels = mtp_inputs(batch.input_ids, batch.labels, batch.doc_ids)[1]
    return int((labels != IGNORE_LABEL).sum())


def _collect_routing(result: StepResult, plan: ForwardPlan, output: LossOutput) -> None:
    for stats in output.router:
        rows = len(plan.layers[stats.layer].rows)
        result.loads[stats.layer] = result.loads.get(stats.layer, 0) + stats.load
        result.entropy.setdefault(stats.layer, Mean()).add(stats.entropy * rows, rows)
