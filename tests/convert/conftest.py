"""Small models of every kind, as model directories."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import save_model_dir

BASE = ModelConfig(
    vocab_size=320,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=24,
    moe_num_experts=4,
    moe_k=2,
    moe_intermediate_size=8,
    moe_num_shared_experts=2,
    moe_layer_start_index=1,
    max_position_embeddings=64,
    initializer_range=0.3,
    tie_word_embeddings=False,
    num_nextn_predict_layers=1,
)
KINDS = {
    "moe": {},
    "tied": {"tie_word_embeddings": True, "num_nextn_predict_layers": 0},
    "all_moe": {"moe_layer_start_index": 0, "moe_num_shared_experts": 0, "head_dim": 6},
    "dense": {"moe_num_experts": 0, "moe_k": 1},
    "blocks": {
        "hidden_size": 128, "head_dim": 64, "intermediate_size": 256, "num_hidden_layers": 2,
        "moe_intermediate_size": 128, "moe_num_experts": 2, "moe_num_shared_experts": 1,
    },
}  # fmt: skip
"""`blocks`: widths of whole FP8 blocks, so that fused and separate matrices agree."""


@pytest.fixture(scope="session")
def make_model() -> Callable[[str], ErnieMoeModel]:
    """make_model(kind): with correction biases and norms that matter."""

    def make(kind: str) -> ErnieMoeModel:
        model = ErnieMoeModel(BASE.model_copy(update=KINDS[kind]), seed=1)
        rng = np.random.default_rng(1)
        for tensor in model.parameters():
            if tensor.ndim == 1:
                values = tensor.numpy() + rng.normal(0, 0.1, tensor.shape)
                tensor.set_value(values.astype(np.float32))
        return model

    return make


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory, make_model) -> Callable[[str], Path]:
    """model_dir(kind): written at the first call."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = Tokenizer.train(["def main():\n    return 42\n" * 20], 300)
    tokenizer.save(folder / "tokenizer")

    def find(kind: str) -> Path:
        if not (folder / kind).exists():
            model = make_model(kind)
            save_model_dir(folder / kind, model, model.config, folder / "tokenizer")
        return folder / kind

    return find
