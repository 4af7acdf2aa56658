"""What a training step costs as the model or the rows grow: experts, sequence length, depth.

`tools/bench.py train --sweeps` calls it. Each point is a model of its own; the optimizer's part of
the step, which grows with all parameters and not with the work of a token, is timed apart.
"""

import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.models.cost import flops_per_token, parameter_counts
from paddle_ernie.train.bench import LEARNING_RATE, WARMUP_STEPS, Shapes, make_stepper, random_batch

EXPERT_COUNTS = (8, 16, 32, 64, 128, 256)
SEQ_LENS = (128, 256, 512, 1024, 2048, 4096)
DEPTHS = (2, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class SweepPoint:
    """One model or length."""

    value: int
    """Number of experts, tokens of a row, layers."""
    seconds: float
    """Median of a step."""
    update_seconds: float
    """Of these, the optimizer's."""
    tokens: int
    """Of a step."""
    flops: float
    """Of a step, by the cost model."""
    parameters: int

    @property
    def tokens_per_s(self) -> float:
        """Whole steps."""
        return self.tokens / self.seconds


def sweep_experts(
    shapes: Shapes, counts: Sequence[int] = EXPERT_COUNTS, format_name: str = "fp32"
) -> list[SweepPoint]:
    """The same active work out of more and more experts."""
    models = {count: _changed(shapes.model, moe_num_experts=count) for count in counts}
    return [
        _measure(count, replace(shapes, model=model), format_name)
        for count, model in models.items()
    ]


def sweep_seq_len(
    shapes: Shapes, lengths: Sequence[int] = SEQ_LENS, format_name: str = "fp32"
) -> list[SweepPoint]:
    """The same number of tokens in fewer and longer rows, each one document."""
    tokens = shapes.rows * shapes.seq_len
    return [
        _measure(
            length,
            replace(
                shapes,
                model=_changed(shapes.model, max_position_embeddings=max(lengths)),
                seq_len=length,
                rows=max(1, tokens // length),
            ),
            format_name,
        )
        for length in lengths
    ]


def sweep_depth(
    shapes: Shapes, depths: Sequence[int] = DEPTHS, format_name: str = "fp32"
) -> list[SweepPoint]:
    """More layers of the same kind."""
    models = {depth: _changed(shapes.model, num_hidden_layers=depth) for depth in depths}
    return [
        _measure(depth, replace(shapes, model=model), format_name)
        for depth, model in models.items()
    ]


def _changed(model: ModelConfig, **fields: int) -> ModelConfig:
    return model.model_copy(update=fields)


def _measure(value: int, shapes: Shapes, format_name: str) -> SweepPoint:
    gc.collect()  # the model before this one: 4 GB at 256 experts
    stepper = make_stepper(shapes.model, shapes, format_name=format_name)
    batch, steps, updates = random_batch(shapes), [], []
    update = stepper.optimizer.step

    def timed_update(*arguments: float) -> None:
        started = time.perf_counter()
        update(*arguments)
        updates.append(time.perf_counter() - started)

    stepper.optimizer.step = timed_update  # type: ignore[method-assign]
    for _ in range(WARMUP_STEPS + shapes.steps):
        started = time.perf_counter()
        stepper.train_step(batch, LEARNING_RATE)
        steps.append(time.perf_counter() - started)
    tokens = shapes.rows * shapes.seq_len
    return SweepPoint(
        value=value,
        seconds=statistics.median(steps[WARMUP_STEPS:]),
        update_seconds=statistics.median(updates[WARMUP_STEPS:]),
        tokens=tokens,
        flops=tokens * flops_per_token(shapes.model, shapes.seq_len, backward=True),
        parameters=parameter_counts(shapes.model).total,
    )
