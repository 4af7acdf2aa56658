"""One model for all sides: our directory, and the public layout that the rivals read."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.convert.export import export_model as convert
from paddle_ernie.convert.hf_config import TargetFormat
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import save_model_dir

WORD_CHARS = 8
SHARD_BYTES = 1 << 32


def export_model(request: dict[str, Any]) -> dict[str, Any]:
    """Random weights of `model`, or if it is None those of `model_dir`, in the public layout in
    `public`, if that is not None.
    """
    folder = Path(request["model_dir"])
    if request["model"] is not None:
        config = ModelConfig(**request["model"])
        assert config.vocab_size is not None, "a benchmark model has a vocab_size"
        with tempfile.TemporaryDirectory(prefix="bench-tokenizer-") as tokenizer:
            random_tokenizer(config.vocab_size).save(Path(tokenizer))
            save_model_dir(folder, ErnieMoeModel(config, seed=0), config, Path(tokenizer))
    if request["public"] is not None:
        target = TargetFormat(dtype="float32")
        convert(folder, Path(request["public"]), target, max_shard_bytes=SHARD_BYTES)
    return {"bytes": sum(file.stat().st_size for file in folder.iterdir())}


def random_tokenizer(vocab_size: int) -> Tokenizer:
    """With exactly so many ids, from words of random letters: as costly as a real one."""
    letters = np.random.default_rng(0).integers(ord("a"), ord("z") + 1, (vocab_size, WORD_CHARS))
    text = " ".join(bytes(word).decode() for word in letters.astype(np.uint8))
    tokenizer = Tokenizer.train([text], vocab_size)
    assert tokenizer.vocab_size == vocab_size, f"{tokenizer.vocab_size} ids of {vocab_size}"
    return tokenizer
