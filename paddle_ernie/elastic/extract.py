"""Cut a Subnet out of a model: a standalone model that computes the same, bit for bit.

    layers          kept ones, renumbered 0.. in their order
    experts         the pool's, renumbered 0.. by ascending old id; router rows and correction bias
                    are the same rows of the old ones
    all the rest    embeddings, norms, attention, shared experts, prediction block: as they are

No value changes. Called by the extract stage; `extract_arrays` needs no Paddle.
"""

import re
from collections.abc import Mapping

import numpy as np

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.elastic.standalone import standalone_config
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import load_arrays, model_arrays

LAYER_NAME = re.compile(r"^layers\.(\d+)\.(.+)$")
EXPERT_ARRAYS = frozenset(
    {
        "mlp.gate",
        "mlp.correction_bias",
        "mlp.experts_gate_up_proj",
        "mlp.experts_down_proj",
    }
)
"""Arrays of a MoE layer that have one entry per expert along their first axis."""


def extract_model(model: ErnieMoeModel, subnet: Subnet) -> ErnieMoeModel:
    """`subnet` as a model of its own; the parent stays as it is.

    Raises InputError if the Subnet does not fit the model, or if its MoE layers differ in pool size
    or top-k.
    """
    subnet.validate(model.config)
    small = ErnieMoeModel(standalone_config(model.config, subnet), seed=None)
    load_arrays(small, extract_arrays(model_arrays(model), model.config, subnet))
    return small


def extract_arrays(
    arrays: Mapping[str, np.ndarray], config: ModelConfig, subnet: Subnet
) -> dict[str, np.ndarray]:
    """The named arrays of the standalone model from those of the parent."""
    new_index = {layer: index for index, layer in enumerate(subnet.layers)}
    result = {}
    for name, array in arrays.items():
        match = LAYER_NAME.match(name)
        if match is None:
            result[name] = array
            continue
        layer, part = int(match[1]), match[2]
        if layer not in new_index:
            continue
        index = new_index[layer]
        if part in EXPERT_ARRAYS and config.is_moe_layer(layer):
            array = array[np.asarray(subnet.experts[index])]
        result[f"layers.{index}.{part}"] = array
    return result
