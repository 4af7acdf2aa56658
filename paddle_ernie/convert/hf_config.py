"""config.json of public ERNIE 4.5 checkpoints <-> ModelConfig.

Every key that FastDeploy, transformers and PaddleFormers read is written, because their defaults
differ (tied embeddings, rope_theta, epsilon, aux-free routing). Called by export and import.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.convert.special_ids import SpecialIds
from paddle_ernie.ops.quantise import BLOCK
from paddle_ernie.ops.router import NORM_MIN
from paddle_ernie.utils.errors import InputError

MOE, DENSE, DENSE_PADDLE = "Ernie4_5_MoeForCausalLM", "Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"
DRAFT = "Ernie4_5_MTPForCausalLM"
MODEL_TYPES = {MOE: "ernie4_5_moe", DENSE: "ernie4_5", DENSE_PADDLE: "ernie4_5"}

TORCH_FP8 = {
    "quant_method": "fp8",
    "weight_block_size": [BLOCK, BLOCK],
    "activation_scheme": "dynamic",
}
PADDLE_FP8 = {"quantization": "block_wise_fp8", "is_quantized": True}

SAME = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "max_position_embeddings",
    "rms_norm_eps",
)
SAME_MOE = (
    "moe_num_experts",
    "moe_k",
    "moe_intermediate_size",
    "moe_num_shared_experts",
    "moe_layer_start_index",
)
ALIASES = {
    "num_experts": "moe_num_experts",
    "n_routed_experts": "moe_num_experts",
    "num_experts_per_tok": "moe_k",
}
EXPECTED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", None),
    "use_bias": (False, None),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "moe_layer_interval": (1, None),
    "moe_norm_min": (NORM_MIN, None),
    "moe_use_aux_free": (True, None),
    "rope_scaling": (None,),
    "sliding_window": (None,),
}
"""Values without which the model would not be ours; None: the key may be absent."""


@dataclass(frozen=True)
class TargetFormat:
    """How an export is stored."""

    dtype: str = "bfloat16"
    """Of all but the router: bfloat16 or float32."""
    fp8: bool = False
    """Attention, MLP and expert matrices as E4M3 with a scale per 128 x 128 block."""
    paddle_layout: bool = False
    """Names and shapes of the -Paddle repositories in place of transformers'."""
    power_of_two_scales: bool = False
    """FP8 scales as powers of two, for a model that is served so (precision.fp8_scales: ue8m0)."""


def to_public_config(
    config: ModelConfig, ids: SpecialIds, target: TargetFormat, *, draft: bool = False
) -> dict[str, Any]:
    """The whole config.json; with `draft` that of the prediction block alone."""
    is_moe = bool(config.moe_layers)
    dense = DENSE_PADDLE if target.paddle_layout else DENSE
    architecture = MOE if is_moe else dense
    fields: dict[str, Any] = {
        "architectures": [DRAFT if draft else architecture],
        "model_type": MODEL_TYPES[architecture],
        # The one key by which FastDeploy tells the layouts apart; both at once are an error there.
        "dtype" if target.paddle_layout else "torch_dtype": target.dtype,
        **{name: getattr(config, name) for name in SAME},
        "head_dim": config.dim_per_head,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "initializer_range": config.initializer_range,
        "num_nextn_predict_layers": config.num_nextn_predict_layers,
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.0,
        "use_bias": False,
        "use_cache": True,
        "bos_token_id": ids.bos,
        "eos_token_id": ids.eos[0],
        "pad_token_id": ids.pad,
    }
    if is_moe:
        fields |= {name: getattr(config, name) for name in SAME_MOE}
        fields |= {
            "moe_layer_end_index": config.num_hidden_layers - 1,
            "moe_layer_interval": 1,
            "moe_norm_min": NORM_MIN,
            # Without it FastDeploy ignores the correction biases, and routes wrongly.
            "moe_use_aux_free": True,
        }
    if target.fp8:
        fields["quantization_config"] = PADDLE_FP8 if target.paddle_layout else TORCH_FP8
    if draft:
        fields["num_hidden_layers"] = 1
    return fields


def from_public_config(
    fields: Mapping[str, Any], where: str, *, tied: bool, mtp: int
) -> ModelConfig:
    """The ModelConfig of a config.json.

    `tied` decides where the file does not say (readers' defaults differ), and `mtp`, the number of
    prediction blocks among the weights, always: transformers drops them but keeps the key.
    """
    fields = _without_aliases(fields, where)
    _check_values(fields, where)
    is_moe = _architecture(fields, where) == MOE
    wanted = [*SAME, *(SAME_MOE if is_moe else ())]
    wanted.remove("num_key_value_heads")
    if missing := [name for name in wanted if fields.get(name) is None]:
        raise InputError(
            f"{where}: without {', '.join(missing)}; expected all of them, because the defaults of "
            "its readers differ: add them as the model was trained"
        )
    tie = fields.get("tie_word_embeddings")
    values = {name: fields[name] for name in wanted} | {
        "num_key_value_heads": fields.get("num_key_value_heads") or fields["num_attention_heads"],
        "head_dim": _head_dim(fields),
        "rope_theta": _rope_theta(fields, where),
        "tie_word_embeddings": tied if tie is None else tie,
        "num_nextn_predict_layers": mtp,
    }
    if fields.get("initializer_range") is not None:
        values["initializer_range"] = fields["initializer_range"]
    if not is_moe:
        values |= {"moe_num_experts": 0, "moe_k": 1}
    try:
        return ModelConfig.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{where}: not a model we have: {error}") from error


def check_quantisation(fields: Mapping[str, Any], where: str) -> None:
    """Refuse quantised checkpoints other than block-wise FP8."""
    found = fields.get("quantization_config")
    if not found:
        return
    named = found if isinstance(found, dict) else {}
    torch_fp8 = named.get("quant_method") == "fp8" and named.get("weight_block_size") == [BLOCK] * 2
    if not torch_fp8 and named.get("quantization") != PADDLE_FP8["quantization"]:
        raise InputError(
            f"{where}: quantization_config is {found!r}; expected block-wise FP8: {TORCH_FP8} or "
            f"{PADDLE_FP8}"
        )


def _without_aliases(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    result = {name: value for name, value in fields.items() if name not in ALIASES}
    for alias, name in ALIASES.items():
        value = fields.get(alias)
        if value is not None and result.setdefault(name, value) != value:
            raise InputError(f"{where}: {alias} is {value!r}, but {name} is {result[name]!r}")
    return result


def _architecture(fields: Mapping[str, Any], where: str) -> str:
    found = fields.get("architectures") or [
        name for name, kind in MODEL_TYPES.items() if kind == fields.get("model_type")
    ]
    for name in found:
        if name in MODEL_TYPES:
            return name
    raise InputError(
        f"{where}: architectures is {fields.get('architectures')!r}, model_type "
        f"{fields.get('model_type')!r}; expected an ERNIE 4.5 text model: {', '.join(MODEL_TYPES)}"
    )


def _check_values(fields: Mapping[str, Any], where: str) -> None:
    for name, allowed in EXPECTED.items():
        if (value := fields.get(name)) not in allowed:
            raise InputError(f"{where}: {name} is {value!r}; only {allowed[0]!r} is supported")
    last = fields.get("num_hidden_layers", 0) - 1
    if (end := fields.get("moe_layer_end_index")) not in (None, -1, last):
        raise InputError(
            f"{where}: moe_layer_end_index is {end!r}; expected the last layer, {last}"
        )
    rope = _rope(fields, where)
    if (kind := rope.get("rope_type", "default")) != "default":
        raise InputError(
            f"{where}: rope_parameters.rope_type is {kind!r}; only 'default' is supported"
        )
    if (part := rope.get("partial_rotary_factor", 1)) != 1:
        raise InputError(f"{where}: rope_parameters.partial_rotary_factor is {part!r}; expected 1")


def _head_dim(fields: Mapping[str, Any]) -> int | None:
    """None if it follows from the other sizes, as a ModelConfig of ours has it."""
    found = fields.get("head_dim")
    heads, width = fields["num_attention_heads"], fields["hidden_size"]
    return None if found is None or found * heads == width else found


def _rope_theta(fields: Mapping[str, Any], where: str) -> float:
    """Top-level (4.5's own files) or inside rope_parameters (as transformers 5 saves)."""
    inside, outside = _rope(fields, where).get("rope_theta"), fields.get("rope_theta")
    if inside is None and outside is None:
        raise InputError(
            f"{where}: no rope_theta; expected it, because FastDeploy takes 10000 and transformers "
            "500000 without it: add the one the model was trained with"
        )
    if None not in (inside, outside) and inside != outside:
        raise InputError(
            f"{where}: rope_theta is {outside!r}, but rope_parameters.rope_theta is {inside!r}"
        )
    return float(outside if inside is None else inside)


def _rope(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    rope = fields.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise InputError(f"{where}: rope_parameters is {rope!r}; expected an object")
    return rope
