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
from paddle_ernie.ops.adamw import AdamWStep, adamw, sum_of_squares
from paddle_ernie.ops.arrays import view
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
    """AdamW over named parameters, with moments in two flat buffers and a state of plain arrays."""

    def __init__(self, parameters: Mapping[str, paddle.Tensor], train: TrainConfig) -> None:
        self.parameters = dict(parameters)
        self._train = train
        self._decays = [decays(p) for p in self.parameters.values()]
        size = sum(p.size for p in self.parameters.values())
        self._moments = (paddle.zeros([size]), paddle.zeros([size]))
        # In fp32 like the moments' own factors, so that the bias correction is exactly theirs.
        self._betas = np.array([train.adam_beta1, train.adam_beta2], np.float32)
        self._powers = self._betas.copy()  # to the power of the coming step's number
        self._started = False

    def gradient_norm(self) -> float:
        """Global L2 norm of the gradients; not finite when any gradient is not."""
        grads = [p.grad for p in self.parameters.values()]
        return math.sqrt(sum_of_squares([grad for grad in grads if grad is not None]))

    @paddle.no_grad()
    def step(self, learning_rate: float, gradient_norm: float) -> None:
        """Clip by `gradient_norm` (the global norm of the gradients), update, drop gradients."""
        limit = self._train.max_grad_norm
        (beta1, beta2), (power1, power2) = self._betas.tolist(), self._powers.tolist()
        numbers = AdamWStep(
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            beta1_power=power1,
            beta2_power=power2,
            epsilon=self._train.adam_epsilon,
            weight_decay=self._train.weight_decay,
            gradient_scale=min(1.0, limit / gradient_norm) if gradient_norm else 1.0,
        )
        parameters = list(self.parameters.values())
        adamw(parameters, [p.grad for p in parameters], self._decays, *self._moments, numbers)
        self._powers *= self._betas
        self._started = True
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Forget the gradients; weights and moments stay as they are."""
        for parameter in self.parameters.values():
            parameter.clear_gradient(False)  # to None; as a keyword it is ignored

    def state(self) -> dict[str, np.ndarray]:
        """`<parameter>.<moment>` -> array (views, valid until the next step), and the powers of
        the betas for the next step, `[1]` each. Empty before the first step."""
        return self._arrays() if self._started else {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take over a state that `state` returned, possibly in another process."""
        if not arrays:
            return
        self._check(arrays)
        for name, array in self._arrays().items():
            array[...] = arrays[name]
        self._started = True

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays, first = {}, 0
        for name, parameter in self.parameters.items():
            piece = slice(first, first + parameter.size)
            for moment, buffer in zip(MOMENTS, self._moments, strict=True):
                arrays[f"{name}.{moment}"] = view(buffer)[piece].reshape(parameter.shape)
            first = piece.stop
        return arrays | {power: self._powers[i : i + 1] for i, power in enumerate(POWERS)}

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
