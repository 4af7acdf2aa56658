"""Snapshots of tiny weights in a folder, as a trainer publishes them. Used by tests of clients."""

from pathlib import Path

import numpy as np

from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import save_model_dir
from tests.serve.engines import TEXT, TINY


def save_snapshot(folder: Path, step: int) -> Path:
    """A tiny model with its tokenizer, other weights for another step, and its version.yaml."""
    tokenizer = Tokenizer.train(TEXT * 20, 340)
    tokenizer.save(folder.parent / "tokenizer")
    config = TINY.model_copy(update={"vocab_size": tokenizer.vocab_size})
    model = ErnieMoeModel(config, seed=step)
    rng = np.random.default_rng(step)
    for bias in model.correction_biases().values():
        bias.set_value(rng.normal(0, 0.1, bias.shape).astype(np.float32))
    save_model_dir(folder, model, config, folder.parent / "tokenizer")
    (folder / "version.yaml").write_text(f"step: {step}\n")
    return folder
