"""Logits of an imported model, run by the model itself."""

import numpy as np
import paddle

from paddle_ernie.convert.types import ImportedModel
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import load_arrays


def run(imported: ImportedModel, ids: np.ndarray) -> np.ndarray:
    """[S, V] of one sequence."""
    model = ErnieMoeModel(imported.config, seed=None)
    load_arrays(model, imported.arrays)
    with paddle.no_grad():
        return model.logits(ids[None]).numpy()[0]
