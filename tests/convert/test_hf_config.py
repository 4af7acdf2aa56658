"""config.json: every key a reader needs, and every value we cannot run refused."""

import pytest

from paddle_ernie.convert.hf_config import (
    TargetFormat,
    check_quantisation,
    from_public_config,
    to_public_config,
)
from paddle_ernie.convert.special_ids import SpecialIds
from paddle_ernie.utils.errors import InputError
from tests.convert.conftest import BASE, KINDS

IDS = SpecialIds(bos=1, eos=(0, 5), pad=2)
MOE = {
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 0,
    "head_dim": 4,
    "hidden_act": "silu",
    "hidden_dropout_prob": 0.0,
    "hidden_size": 16,
    "initializer_range": 0.3,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "model_type": "ernie4_5_moe",
    "moe_intermediate_size": 8,
    "moe_k": 2,
    "moe_layer_end_index": 2,
    "moe_layer_interval": 1,
    "moe_layer_start_index": 1,
    "moe_norm_min": 1e-12,
    "moe_num_experts": 4,
    "moe_num_shared_experts": 2,
    "moe_use_aux_free": True,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "num_nextn_predict_layers": 1,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_bias": False,
    "use_cache": True,
    "vocab_size": 320,
}


def read(fields, **options):
    return from_public_config(fields, "config.json", **{"tied": False, "mtp": 1, **options})


def test_every_key_of_a_moe_model():
    assert to_public_config(BASE, IDS, TargetFormat()) == MOE


def test_a_dense_model_has_no_key_of_experts():
    dense = BASE.model_copy(update={"moe_num_experts": 0})
    fields = to_public_config(dense, IDS, TargetFormat("float32"))
    assert fields["architectures"] == ["Ernie4_5ForCausalLM"]
    assert fields["model_type"] == "ernie4_5"
    assert fields["torch_dtype"] == "float32"
    assert not [name for name in fields if name.startswith("moe_")]


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [("moe", "Ernie4_5_MoeForCausalLM"), ("dense", "Ernie4_5_ForCausalLM")],
)
def test_the_paddle_layout_says_dtype(kind, architecture):
    config = BASE.model_copy(update=KINDS[kind])
    fields = to_public_config(config, IDS, TargetFormat(fp8=True, paddle_layout=True))
    assert fields["architectures"] == [architecture]
    assert fields["dtype"] == "bfloat16"
    assert "torch_dtype" not in fields and "transformers_version" not in fields
    assert fields["quantization_config"]["quantization"] == "block_wise_fp8"


def test_fp8_and_draft():
    fields = to_public_config(BASE, IDS, TargetFormat(fp8=True), draft=True)
    assert fields["architectures"] == ["Ernie4_5_MTPForCausalLM"]
    assert fields["num_hidden_layers"] == 1
    assert fields["quantization_config"] == {
        "quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic",
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("paddle", [False, True])
def test_round_trip(kind, paddle):
    config = BASE.model_copy(update=KINDS[kind])
    fields = to_public_config(config, IDS, TargetFormat(paddle_layout=paddle))
    back = read(fields, mtp=config.num_nextn_predict_layers)
    if not config.moe_layers:  # what only experts have is not kept
        config = config.model_copy(
            update={name: getattr(back, name) for name in type(back).model_fields if "moe_" in name}
        )
    assert back == config


def test_what_transformers_saves():
    """Aliases, rope_parameters, a default end of the MoE layers, no key for tied embeddings."""
    fields = {k: v for k, v in MOE.items() if k not in ("rope_theta", "moe_k", "moe_num_experts")}
    del fields["tie_word_embeddings"], fields["torch_dtype"], fields["moe_use_aux_free"]
    fields |= {
        "dtype": "float32", "num_experts": 4, "num_experts_per_tok": 2, "moe_layer_end_index": -1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "unheard_of": 1,
    }  # fmt: skip
    assert read(fields) == BASE
    assert read(fields, tied=True).tie_word_embeddings
    assert read(fields, mtp=0).num_nextn_predict_layers == 0
    assert read({**fields, "num_key_value_heads": None}).num_key_value_heads == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_bias": True}, "use_bias is True; only False is supported"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu' is supported"),
        ({"moe_layer_interval": 2}, "moe_layer_interval is 2"),
        ({"moe_layer_end_index": 1}, "moe_layer_end_index is 1; expected the last layer, 2"),
        ({"moe_norm_min": 1e-6}, "moe_norm_min is 1e-06"),
        ({"moe_use_aux_free": False}, "moe_use_aux_free is False; only True is supported"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling is {'type': 'yarn'}"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'; only 'default'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "is 1000000.0, but .* is 5.0"),
        ({"rope_theta": None}, "no rope_theta; expected it"),
        ({"num_experts": 9}, "num_experts is 9, but moe_num_experts is 4"),
        ({"architectures": ["LlamaForCausalLM"]}, "'LlamaForCausalLM'.*expected an ERNIE 4.5"),
        ({"architectures": None, "model_type": "x"}, "expected an ERNIE 4.5"),
        ({"moe_k": None, "rms_norm_eps": None}, "without rms_norm_eps, moe_k;"),
        ({"moe_k": 5}, "moe_k 5 is more than moe_num_experts 4"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"moe_num_experts": [4, 4]}, "moe_num_experts"),
    ],
)
def test_what_we_cannot_run_is_refused_by_key(change, message):
    with pytest.raises(InputError, match=message) as raised:
        read({**MOE, **change})
    assert "config.json" in str(raised.value)


@pytest.mark.parametrize(
    ("found", "fine"),
    [
        (None, True),
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "x": 1}, True),
        ({"quantization": "block_wise_fp8"}, True),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, False),
        ({"quant_method": "fp8"}, False),
        ({"quantization": "wint4"}, False),
        ("fp8", False),
    ],
)
def test_quantisation(found, fine):
    if fine:
        check_quantisation({"quantization_config": found}, "config.json")
    else:
        with pytest.raises(InputError, match="expected block-wise FP8"):
            check_quantisation({"quantization_config": found}, "config.json")
