"""AdamW over all parameters in one call, and the sum of squares for the global gradient norm.
Called by the optimizer.

    parameters  | weight [6, 4]        | bias [4] | ...     updated in place
    moment1 [N] | its moments, flat    |          | ...     one buffer each, in the same order
    moment2 [N] |                      |          |

Flat moments can be sliced into shards and written without knowing the parameters. Work is cut
into fixed pieces: results do not depend on the number of threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import paddle

from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import contiguous, row_chunks, view

DECAYS, HAS_GRADIENT = 1, 2  # flags of the compiled operator


@dataclass(frozen=True)
class AdamWStep:
    """The numbers of one update."""

    learning_rate: float
    beta1: float
    beta2: float
    beta1_power: float
    """beta1 to the power of the step's number, counted from 1."""
    beta2_power: float
    epsilon: float
    weight_decay: float
    gradient_scale: float
    """Gradients are multiplied by it first (clipping)."""


def adamw(
    parameters: Sequence[paddle.Tensor],
    gradients: Sequence[paddle.Tensor | None],
    decays: Sequence[bool],
    moment1: paddle.Tensor,
    moment2: paddle.Tensor,
    step: AdamWStep,
) -> None:
    """Update parameters and moments in place; None stands for a gradient of zeros."""
    if not library.available(moment1):
        _adamw_plain(parameters, gradients, decays, moment1, moment2, step)
        return
    flags = [
        DECAYS * decay + HAS_GRADIENT * (gradient is not None)
        for gradient, decay in zip(gradients, decays, strict=True)
    ]
    present = [contiguous(gradient) for gradient in gradients if gradient is not None]
    library.call(
        "adamw", list(parameters), present, moment1, moment2, flags, step.learning_rate,
        step.gradient_scale, step.beta1, step.beta2, step.beta1_power, step.beta2_power,
        step.epsilon, step.weight_decay,
    )  # fmt: skip


def sum_of_squares(tensors: Sequence[paddle.Tensor]) -> float:
    """Accumulated in fp64; not finite when an element is not."""
    if tensors and library.available(tensors[0]):
        return library.call("sum_of_squares", [contiguous(tensor) for tensor in tensors]).item()
    return float(sum(_plain_sum(view(tensor).reshape(-1)) for tensor in tensors))


def _adamw_plain(
    parameters: Sequence[paddle.Tensor],
    gradients: Sequence[paddle.Tensor | None],
    decays: Sequence[bool],
    moment1: paddle.Tensor,
    moment2: paddle.Tensor,
    step: AdamWStep,
) -> None:
    root = np.sqrt(1 - step.beta2_power)
    rate, epsilon = step.learning_rate * root / (1 - step.beta1_power), step.epsilon * root
    first = 0
    for parameter, gradient, decay in zip(parameters, gradients, decays, strict=True):
        values = view(parameter).reshape(-1)
        slopes = np.zeros_like(values) if gradient is None else view(gradient).reshape(-1)
        for chunk in row_chunks(values.size, 8 * values.itemsize):
            p, g = values[chunk], slopes[chunk] * values.dtype.type(step.gradient_scale)
            here = slice(first + chunk.start, first + chunk.stop)
            m, v = view(moment1)[here], view(moment2)[here]
            m += (1 - step.beta1) * (g - m)
            v += (1 - step.beta2) * (g * g - v)
            if decay:
                p *= 1 - step.learning_rate * step.weight_decay
            p -= rate * m / (np.sqrt(v) + epsilon)
        first += values.size


def _plain_sum(flat: np.ndarray) -> float:
    return sum(
        float(np.square(flat[chunk], dtype=np.float64).sum())
        for chunk in row_chunks(flat.size, 2 * flat.itemsize)
    )
