"""Auxiliary-loss-free load balancing (Wang et al. 2024, arXiv:2408.15664), after each update.

Each expert has a bias that is added to its router probability for selection only. After a step the
bias moves by a fixed amount against the load that the whole global batch put on the expert:

    bias += speed * sign(mean load - load)

Experts above the mean become a little less likely to be chosen, those below a little more. No
gradient flows through the bias, so the loss is undisturbed.
"""

from collections.abc import Mapping

import numpy as np
import paddle

from paddle_ernie.train.arrays import host_view


def balanced_bias(bias: np.ndarray, load: np.ndarray, speed: float) -> np.ndarray:
    """The fp32 [E] bias after a step in which expert e processed `load[e]` tokens."""
    direction = np.sign(load.mean() - load).astype(np.float32)
    return bias + np.float32(speed) * direction


def update_biases(
    biases: Mapping[int, paddle.Tensor], loads: Mapping[int, np.ndarray], speed: float
) -> None:
    """Move the bias of every layer in place; `loads` are the global batch's, int64 [E] a layer."""
    if speed == 0:
        return
    for layer, load in loads.items():
        bias = biases[layer]
        bias.set_value(balanced_bias(host_view(bias), load, speed))
