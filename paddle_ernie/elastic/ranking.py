"""Importance: scores that say which layers and experts a smaller model should keep.

`elastic.importance` measures it, `Subnet.from_spec` and `elastic.search` choose by it. Plain data,
no Paddle, so that a choice can be made and saved where no model is loaded.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Importance:
    """Scores on calibration text; larger is more important.

    Example of a model with 3 layers, the first one dense, and 4 experts:
        layer_scores   (2.1, 0.3, 0.8)
        expert_scores  (None, [0.5, 0.1, 0.9, 0.2], [0.4, 0.4, 0.1, 0.3])
    """

    method: str
    """How experts were scored: "reap" or "frequency"."""
    layer_scores: tuple[float, ...]
    """Loss increase in nats per token when only that layer is skipped; one per layer."""
    expert_scores: tuple[np.ndarray | None, ...]
    """float64 [E] per layer; None for a dense layer."""

    def best_layers(self, count: int) -> tuple[int, ...]:
        """The `count` layers with the highest scores, ascending; the lower index wins a tie."""
        return _best(np.asarray(self.layer_scores), count)

    def best_experts(self, layer: int, count: int) -> tuple[int, ...]:
        """The `count` best experts of a MoE layer, ascending; the lower id wins a tie."""
        scores = self.expert_scores[layer]
        assert scores is not None, f"layer {layer} is dense"
        return _best(scores, count)

    def to_json(self) -> dict[str, Any]:
        """Plain lists, for extraction.json."""
        return {
            "method": self.method,
            "layer_scores": [float(score) for score in self.layer_scores],
            "expert_scores": [
                None if scores is None else [float(score) for score in scores]
                for scores in self.expert_scores
            ],
        }


def _best(scores: np.ndarray, count: int) -> tuple[int, ...]:
    order = np.argsort(-scores, kind="stable")
    return tuple(sorted(int(index) for index in order[:count]))
