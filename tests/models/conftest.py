"""Tiny models and batches with documents."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.models.model import ErnieMoeModel

TINY = ModelConfig(
    vocab_size=96,
    hidden_size=32,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    moe_num_experts=8,
    moe_k=2,
    moe_intermediate_size=16,
    moe_num_shared_experts=1,
    moe_layer_start_index=1,
    max_position_embeddings=128,
    initializer_range=0.2,
)


@dataclass(frozen=True)
class Rows:
    """Arrays [B, S] in the order `ErnieMoeModel.loss` takes them."""

    input_ids: np.ndarray
    labels: np.ndarray
    doc_ids: np.ndarray
    position_ids: np.ndarray

    def __iter__(self):
        return iter((self.input_ids, self.labels, self.doc_ids, self.position_ids))

    def take(self, rows) -> "Rows":
        return Rows(*(array[rows] for array in self))


@pytest.fixture(scope="session")
def tiny() -> ModelConfig:
    """A dense layer and three MoE layers with 8 experts, top-2."""
    return TINY


@pytest.fixture(scope="session")
def make_model() -> Callable[..., ErnieMoeModel]:
    """make_model(seed=0, **config changes): with correction biases that matter."""

    def make(seed: int = 0, **changes) -> ErnieMoeModel:
        model = ErnieMoeModel(TINY.model_copy(update=changes), seed=seed)
        rng = np.random.default_rng(seed)
        for bias in model.correction_biases().values():
            bias.set_value(rng.normal(0, 0.1, bias.shape).astype(np.float32))
        return model

    return make


@pytest.fixture(scope="session")
def make_rows() -> Callable[..., Rows]:
    """make_rows(num_rows, seq_len=20, seed=0): random ids, about three documents a row."""

    def make(num_rows: int, seq_len: int = 20, seed: int = 0) -> Rows:
        rng = np.random.default_rng(seed)
        ids = rng.integers(0, TINY.vocab_size, (num_rows, seq_len))
        doc_ids = np.sort(rng.integers(0, 3, (num_rows, seq_len)), axis=1)
        labels = np.full_like(ids, -100)
        same = doc_ids[:, 1:] == doc_ids[:, :-1]
        labels[:, :-1] = np.where(same, ids[:, 1:], -100)
        starts = np.zeros_like(ids)
        starts[:, 1:] = np.where(same, 0, np.arange(1, seq_len))
        positions = np.arange(seq_len) - np.maximum.accumulate(starts, axis=1)
        return Rows(ids, labels, doc_ids, positions)

    return make


@pytest.fixture(scope="session")
def total_loss() -> Callable[..., object]:
    """total_loss(model, rows, **options): LossOutput, gradients computed."""

    def run(model: ErnieMoeModel, rows: Rows, **options):
        options.setdefault("denominator", 7.0)
        model.clear_gradients(set_to_zero=False)
        output = model.loss(*rows, **options)
        output.total.backward()
        return output

    return run


@pytest.fixture(scope="session")
def gradients() -> Callable[[ErnieMoeModel], dict[str, np.ndarray]]:
    """gradients(model): copies by name, of the parameters that have one."""
    return lambda model: {
        name: tensor.grad.numpy()
        for name, tensor in model.named_parameters()
        if tensor.grad is not None
    }
