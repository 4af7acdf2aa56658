"""AdamW in fp32 with decoupled weight decay, and clipping by global norm. Called by `train_step`.

Weight decay: tensors with two or more axes decay (projections, experts, router, embeddings; the
embedding is also the output layer when tied); norms and biases, which have one, do not.

A parameter that no row of the step used (a layer that every row skipped) has no gradient. It is
given a zero gradient, as an expert that no token chose has inside its stacked tensor: moments decay
and weights follow them, the same way for all parameters, so one step count serves them all.

State is name -> array and survives a checkpoint bit for bit.
"""

import math
from collections.abc import Mapping

import numpy as np
import paddle

from paddle_ernie.config.train import TrainConfig
from paddle_ernie.train.arrays import host_view, sum_of_squares
from paddle_ernie.utils.errors import CheckpointError

MOMENTS = ("moment1", "moment2")
POWERS = ("beta1_pow_acc", "beta2_pow_acc")


def trainable_parameters(model: paddle.nn.Layer) -> dict[str, paddle.Tensor]:
    """Name -> parameter of everything the optimizer updates, in the model's order."""
    return {name: p for name, p in model.named_parameters() if not p.stop_gradient}


def decays(parameter: paddle.Tensor) -> bool:
    """Whether weight decay applies (see the module's rule)."""
    return parameter.ndim >= 2


class AdamW:
    """`paddle.optimizer.AdamW` over named parameters, with a state that is plain arrays."""

    def __init__(self, parameters: Mapping[str, paddle.Tensor], train: TrainConfig) -> None:
        self.parameters = dict(parameters)
        decayed = {p.name for p in self.parameters.values() if decays(p)}
        self._adamw = paddle.optimizer.AdamW(
            learning_rate=train.learning_rate,
            beta1=train.adam_beta1,
            beta2=train.adam_beta2,
            epsilon=train.adam_epsilon,
            weight_decay=train.weight_decay,
            apply_decay_param_fun=lambda name: name in decayed,
            parameters=list(self.parameters.values()),
        )
        self._max_grad_norm = train.max_grad_norm

    def gradient_norm(self) -> float:
        """Global L2 norm of the gradients; not finite when any gradient is not."""
        grads = (p.grad for p in self.parameters.values() if p.grad is not None)
        with np.errstate(over="ignore", invalid="ignore"):  # reported through the result
            return math.sqrt(sum_of_squares(host_view(grad) for grad in grads))

    @paddle.no_grad()
    def step(self, learning_rate: float, gradient_norm: float) -> None:
        """Clip by `gradient_norm` (the global norm of the gradients), update, drop gradients."""
        scale = min(1.0, self._max_grad_norm / gradient_norm) if gradient_norm else 1.0
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = paddle.zeros_like(parameter)
            elif scale < 1.0:
                parameter.grad.scale_(scale)
        self._adamw.set_lr(learning_rate)
        self._adamw.step()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Forget the gradients; weights and moments stay as they are."""
        self._adamw.clear_grad(set_to_zero=False)

    def state(self) -> dict[str, np.ndarray]:
        """`<parameter>.<moment>` -> array (views, valid until the next step), and the powers of
        the betas, which are the same for every parameter. Empty before the first step."""
        live = self._adamw.state_dict()
        arrays = {
            f"{name}.{moment}": host_view(live[_key(parameter, moment)])
            for name, parameter in self.parameters.items()
            for moment in MOMENTS
            if _key(parameter, moment) in live
        }
        if arrays:
            first = next(iter(self.parameters.values()))
            arrays |= {power: host_view(live[_key(first, power)]) for power in POWERS}
        return arrays

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take over a state that `state` returned, possibly in another process."""
        if not arrays:
            return
        self._check(arrays)
        state = {}
        for name, parameter in self.parameters.items():
            for moment in MOMENTS:
                state[_key(parameter, moment)] = paddle.to_tensor(arrays[f"{name}.{moment}"])
            for power in POWERS:
                state[_key(parameter, power)] = paddle.to_tensor(arrays[power])
        self._adamw.set_state_dict(state)

    def _check(self, arrays: Mapping[str, np.ndarray]) -> None:
        wanted = {
            f"{name}.{moment}": tuple(p.shape)
            for name, p in self.parameters.items()
            for moment in MOMENTS
        } | dict.fromkeys(POWERS, (1,))
        found = {name: tuple(array.shape) for name, array in arrays.items()}
        faults = [
            f"{name}: expected {wanted.get(name, 'nothing')}, found {found.get(name, 'nothing')}"
            for name in sorted(wanted.keys() | found.keys())
            if wanted.get(name) != found.get(name)
        ]
        if faults:
            raise CheckpointError(
                "optimizer state does not fit the model:\n  "
                + "\n  ".join(faults[:10])
                + (f"\n  and {len(faults) - 10} more" if len(faults) > 10 else "")
                + "\nResume with the model configuration the checkpoint was made with."
            )


def _key(parameter: paddle.Tensor, accumulator: str) -> str:
    """Name Paddle gives an accumulator: `<parameter>_<accumulator>_0`."""
    return f"{parameter.name}_{accumulator}_0"
