"""Names of the -Paddle layout, and the way back."""

import numpy as np
import pytest

from paddle_ernie.convert.paddle_layout import (
    from_draft,
    from_paddle,
    iterate_draft,
    iterate_paddle,
)
from paddle_ernie.models.hf_names import to_hf
from paddle_ernie.models.model_dir import model_arrays
from tests.convert.conftest import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(make_model, kind):
    model = make_model(kind)
    arrays = model_arrays(model)
    back = from_paddle(dict(iterate_paddle(arrays, model.config)), model.config)
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].flags.c_contiguous
        np.testing.assert_array_equal(back[name], array)


def test_relation_to_the_torch_layout(make_model):
    """[in, out] against [out, in]; q, k, v and gate, up side by side."""
    model = make_model("moe")
    arrays = model_arrays(model)
    paddle, torch = dict(iterate_paddle(arrays, model.config)), to_hf(arrays, model.config)
    for layer in ("layers.0", "layers.2", "mtp_block.0"):
        qkv = [torch[f"model.{layer}.self_attn.{name}_proj.weight"].T for name in "qkv"]
        np.testing.assert_array_equal(
            paddle[f"ernie.{layer}.self_attn.qkv_proj.weight"], np.concatenate(qkv, axis=1)
        )
        fused = [torch[f"model.{layer}.self_attn.o_proj.weight"].T]
        np.testing.assert_array_equal(paddle[f"ernie.{layer}.self_attn.o_proj.weight"], fused[0])
    for mlp in ("layers.0.mlp", "layers.1.mlp.experts.3", "layers.1.mlp.shared_experts"):
        gate_up = [torch[f"model.{mlp}.{name}_proj.weight"].T for name in ("gate", "up")]
        np.testing.assert_array_equal(
            paddle[f"ernie.{mlp}.up_gate_proj.weight"], np.concatenate(gate_up, axis=1)
        )
        np.testing.assert_array_equal(
            paddle[f"ernie.{mlp}.down_proj.weight"], torch[f"model.{mlp}.down_proj.weight"].T
        )
    for name in ("layers.1.mlp.gate", "mtp_linear_proj.0"):
        np.testing.assert_array_equal(
            paddle[f"ernie.{name}.weight"], torch[f"model.{name}.weight"].T
        )
    np.testing.assert_array_equal(paddle["lm_head.weight"], torch["lm_head.weight"].T)
    for name in (
        "embed_tokens.weight",
        "norm.weight",
        "mtp_emb_norm.0.weight",
        "mtp_hidden_norm.0.weight",
        "layers.1.mlp.moe_statics.e_score_correction_bias",
        "layers.1.input_layernorm.weight",
    ):
        np.testing.assert_array_equal(paddle[f"ernie.{name}"], torch[f"model.{name}"])


@pytest.mark.parametrize("transposed", [False, True])
def test_drafts(make_model, transposed):
    model = make_model("moe")
    arrays = model_arrays(model)
    draft = dict(iterate_draft(arrays, model.config, transposed=transposed))
    assert sorted(name.removeprefix("ernie.") for name in draft) == [
        "mtp_block.0.input_layernorm.weight",
        "mtp_block.0.mlp.down_proj.weight",
        "mtp_block.0.mlp.up_gate_proj.weight",
        "mtp_block.0.post_attention_layernorm.weight",
        "mtp_block.0.self_attn.o_proj.weight",
        "mtp_block.0.self_attn.qkv_proj.weight",
        "mtp_emb_norm.0.weight",
        "mtp_hidden_norm.0.weight",
        "mtp_linear_proj.0.weight",
    ]
    assert draft["ernie.mtp_linear_proj.0.weight"].shape == ((16, 32) if transposed else (32, 16))
    back = from_draft(draft, transposed=transposed)
    expected = {name: array for name, array in arrays.items() if name.startswith("mtp.")}
    assert back.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(back[name], array)
