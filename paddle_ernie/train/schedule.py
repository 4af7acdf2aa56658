"""Learning rate of every step, as pure functions of the step number. Called by the training loop.

Steps count from 1 to `max_steps`; the last warm-up step and every step of the plateau have the peak
rate, the last step has `min_learning_rate` (except for `constant`, and `wsd` with decay_steps 0,
which never decay).

    wsd        /‾‾‾‾‾‾‾\\_         linear warm-up, plateau, then 1 - sqrt over decay_steps
    cosine     /‾‾-._             linear warm-up, then half a cosine to the last step
    constant   /‾‾‾‾‾‾‾‾‾         linear warm-up, then the peak
"""

import math

from paddle_ernie.config.train import TrainConfig


def learning_rate(step: int, train: TrainConfig) -> float:
    """Rate of optimizer step `step` (from 1); steps past the last one keep the last rate."""
    if step < 1:
        raise ValueError(f"steps count from 1, got {step}")
    step = min(step, train.max_steps)
    peak, low = train.learning_rate, train.min_learning_rate
    if step <= train.warmup_steps:
        return peak * (step / train.warmup_steps)
    if train.lr_scheduler_type == "constant":
        return peak
    if train.lr_scheduler_type == "cosine":
        share = _cosine(step, train.warmup_steps, train.max_steps)
    else:
        share = _one_minus_sqrt(step, train.max_steps, train.decay_steps)
    return peak * share + low * (1.0 - share)  # exactly peak at 1 and low at 0


def _cosine(step: int, start: int, stop: int) -> float:
    """1 at `start`, 0 at `stop`, half a cosine between."""
    return 0.5 * (1.0 + math.cos(math.pi * (step - start) / (stop - start)))


def _one_minus_sqrt(step: int, max_steps: int, decay_steps: int) -> float:
    """1 until the decay begins, then 1 - sqrt(progress) (Hägele et al. 2024, arXiv:2405.18392)."""
    into_decay = step - (max_steps - decay_steps)
    if into_decay <= 0:
        return 1.0
    return 1.0 - math.sqrt(into_decay / decay_steps)
