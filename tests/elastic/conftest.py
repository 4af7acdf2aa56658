"""Small models with every feature that extraction has to carry over, and rows to run them on."""

from dataclasses import dataclass

import numpy as np
import pytest

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.models.model import ErnieMoeModel

IGNORED = -100


@dataclass(frozen=True)
class Rows:
    """What `elastic.importance` reads of a batch."""

    input_ids: np.ndarray
    labels: np.ndarray
    doc_ids: np.ndarray
    position_ids: np.ndarray

    def arrays(self) -> tuple[np.ndarray, ...]:
        """In the order the model takes them."""
        return self.input_ids, self.labels, self.doc_ids, self.position_ids


def make_rows(seed: int, rows: int = 3, seq_len: int = 24, vocab: int = 97) -> Rows:
    """Random tokens, each row two documents of random lengths."""
    random = np.random.default_rng(seed)
    input_ids = random.integers(0, vocab, (rows, seq_len))
    cuts = random.integers(4, seq_len - 4, (rows, 1))
    positions = np.broadcast_to(np.arange(seq_len), (rows, seq_len))
    doc_ids = (positions >= cuts).astype(np.int32)
    labels = np.roll(input_ids, -1, axis=1)
    labels[:, -1] = IGNORED
    np.put_along_axis(labels, cuts - 1, IGNORED, axis=1)
    return Rows(input_ids, labels, doc_ids, np.where(doc_ids == 1, positions - cuts, positions))


def model_config(**changes: object) -> ModelConfig:
    """Two dense layers, three MoE layers, a prediction block."""
    fields = {
        "vocab_size": 97,
        "hidden_size": 36,  # odd widths: expert matrices start at unaligned addresses
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "head_dim": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "moe_num_experts": 8,
        "moe_k": 3,
        "moe_intermediate_size": 25,
        "moe_layer_start_index": 2,
        "num_nextn_predict_layers": 1,
        "initializer_range": 0.2,
    }
    return ModelConfig.model_validate({**fields, **changes})


def make_model(**changes: object) -> ErnieMoeModel:
    """A random model whose router is far from uniform and whose correction biases matter."""
    model = ErnieMoeModel(model_config(**changes), seed=3)
    random = np.random.default_rng(5)
    for bias in model.correction_biases().values():
        bias.set_value(random.normal(0, 0.1, bias.shape).astype(np.float32))
    return model


@pytest.fixture(scope="session")
def model() -> ErnieMoeModel:
    """Not to be changed by a test."""
    return make_model()
