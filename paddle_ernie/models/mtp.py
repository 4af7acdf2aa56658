"""Multi-token prediction: one more block that predicts the token after the next.

    h_t   --RMSNorm--\\
                      concat -> projection -> dense block -> the model's final norm and head
    emb(x_t+1) -RMSNorm-/                                    -> target x_t+2

As in DeepSeek-V3 (section 2.2) and ERNIE 4.5; h is the last layer's output before the final norm.
Used in training only; a position has a target if t + 1 and t + 2 are of the same document.
"""

import numpy as np
import paddle

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.models.block import Block
from paddle_ernie.models.init import parameter
from paddle_ernie.models.rows import RowInputs
from paddle_ernie.ops.linear import linear
from paddle_ernie.ops.linear_cross_entropy import NO_TARGET
from paddle_ernie.ops.rms_norm import rms_norm


class MTPBlock(paddle.nn.Layer):
    """The block without head and embedding, which are the model's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        D = config.hidden_size
        self.eps = config.rms_norm_eps
        self.hidden_norm = parameter(self, D, value=1.0)
        self.embedding_norm = parameter(self, D, value=1.0)
        self.proj = parameter(self, 2 * D, D)
        self.block = Block(config, layer=None)

    def forward(
        self, hidden_TD: paddle.Tensor, next_embedding_TD: paddle.Tensor, rows: RowInputs
    ) -> paddle.Tensor:
        """Hidden states for the second-next token, before the final norm."""
        parts = (
            rms_norm(hidden_TD, self.hidden_norm, self.eps),
            rms_norm(next_embedding_TD, self.embedding_norm, self.eps),
        )
        joined = linear(paddle.concat(parts, axis=1), self.proj, rows.numerics.high)
        return self.block(joined, rows, ())[0]


def mtp_inputs(
    input_ids_BS: np.ndarray, labels_BS: np.ndarray, doc_ids_BS: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(next token [B, S], label of the second-next token [B, S], -100 where there is none)."""
    next_ids = np.roll(input_ids_BS, -1, axis=1)
    labels = np.full_like(labels_BS, NO_TARGET)
    same_document = doc_ids_BS[:, 1:] == doc_ids_BS[:, :-1]
    labels[:, :-1] = np.where(same_document, labels_BS[:, 1:], NO_TARGET)
    return next_ids, labels
