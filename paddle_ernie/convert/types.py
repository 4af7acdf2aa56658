"""What readers of foreign checkpoints return, and export takes. No Paddle.

read_hf | read_llama | read_gguf  -->  ImportedModel  -->  models.model_dir.save_model_dir
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paddle_ernie.config.model import ModelConfig


@dataclass(frozen=True)
class ImportedModel:
    """A whole model in our layout, in memory."""

    config: ModelConfig
    """With vocab_size set."""
    arrays: Mapping[str, np.ndarray]
    """Our parameter names, float32, shapes as ErnieMoeModel(config) has them."""
    tokenizer_dir: Path | None
    """Folder with tokenizer.json (and tokenizer_config.json, if there is one)."""
    notes: tuple[str, ...] = ()
    """What the user should know: tensors left out on purpose, values that were rounded."""
