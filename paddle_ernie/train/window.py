"""MetricWindow: what happened since the last log record, added up over steps.

The metrics callback adds every step and turns the sums into one record each `logging_steps`. Sums
are part of a checkpoint, so a run resumed in the middle of a window logs what an uninterrupted one
would have logged.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from paddle_ernie.train.evaluate import perplexity, target_bytes
from paddle_ernie.train.loop import StepEvent
from paddle_ernie.train.step import Mean


@dataclass
class MetricWindow:
    """Sums over the steps of a window; skipped steps only count as such."""

    steps: int = 0
    skipped: int = 0
    main: Mean = field(default_factory=Mean)
    axes: dict[str, Mean] = field(default_factory=dict)
    mtp: Mean = field(default_factory=Mean)
    balance: Mean = field(default_factory=Mean)
    target_bytes: int = 0
    grad_norm: float = 0.0
    loads: dict[int, np.ndarray] = field(default_factory=dict)
    """Layer -> int64 [E]."""
    entropy: dict[int, Mean] = field(default_factory=dict)
    """Layer -> normalised routing entropy over rows."""

    def add(self, event: StepEvent, token_bytes: np.ndarray) -> None:
        """Count one step; `token_bytes` is int64 [V]."""
        result = event.result
        if not result.applied:
            self.skipped += 1
            return
        self.steps += 1
        self.main.add(result.main.total, result.main.weight)
        for axis, loss in result.axes.items():
            self.axes.setdefault(axis, Mean()).add(loss.total, loss.weight)
        self.mtp.add(result.mtp.total, result.mtp.weight)
        self.balance.add(result.balance.total, result.balance.weight)
        self.target_bytes += target_bytes(event.batch.labels, token_bytes)
        self.grad_norm += result.grad_norm
        for layer, load in result.loads.items():
            self.loads[layer] = self.loads.get(layer, 0) + load
        for layer, entropy in result.entropy.items():
            self.entropy.setdefault(layer, Mean()).add(entropy.total, entropy.weight)

    def scalars(self) -> dict[str, float]:
        """Losses, gradient norm and routing of the window."""
        loss = self.main.mean
        nats_per_byte = self.main.total / self.target_bytes if self.target_bytes else math.nan
        values = {
            "loss/train": loss,
            "train/bits_per_byte": nats_per_byte / math.log(2),
            "train/perplexity": perplexity(loss),
            "train/grad_norm": self.grad_norm / self.steps if self.steps else math.nan,
            "train/skipped_in_window": float(self.skipped),
        }
        values |= {f"loss/axis/{axis}": total.mean for axis, total in self.axes.items()}
        if self.mtp.weight:
            values["loss/mtp"] = self.mtp.mean
        if self.balance.total:
            values["loss/balance"] = self.balance.mean
        return values | self._routing()

    def histograms(self) -> dict[str, np.ndarray]:
        """Tokens per expert, by layer."""
        return {f"moe/layer_{layer:02d}/load": load for layer, load in self.loads.items()}

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        loads = {str(layer): load.tolist() for layer, load in self.loads.items()}
        entropy = {str(layer): asdict(value) for layer, value in self.entropy.items()}
        return asdict(self) | {"loads": loads, "entropy": entropy}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "MetricWindow":
        """Inverse of `state`."""
        values = {name.name: state[name.name] for name in fields(cls)}
        return cls(
            **values
            | {
                "main": Mean(**state["main"]),
                "mtp": Mean(**state["mtp"]),
                "balance": Mean(**state["balance"]),
                "axes": {axis: Mean(**value) for axis, value in state["axes"].items()},
                "loads": {int(k): np.asarray(v, np.int64) for k, v in state["loads"].items()},
                "entropy": {int(k): Mean(**v) for k, v in state["entropy"].items()},
            }
        )

    def _routing(self) -> dict[str, float]:
        """Balance and entropy per layer, and over the layers their worst and their mean."""
        values = {}
        for layer, load in self.loads.items():
            mean = load.mean()
            ratio = float(load.max() / mean) if mean else math.nan
            values[f"moe/layer_{layer:02d}/load_max_over_mean"] = ratio
            values[f"moe/layer_{layer:02d}/entropy"] = self.entropy[layer].mean
        if values:
            ratios = [v for name, v in values.items() if name.endswith("load_max_over_mean")]
            values["moe/load_max_over_mean"] = max(ratios)
            entropies = [entropy.mean for entropy in self.entropy.values()]
            values["moe/entropy"] = sum(entropies) / len(entropies)
        return values
