"""Llama in Hugging Face's layout, beside a NumPy Llama in float64 that rotates halves."""

import json
import re

import numpy as np
import pytest
from safetensors.numpy import save_file

from paddle_ernie.convert.llama import interleave_rows, llama_config, read_llama
from paddle_ernie.utils.errors import InputError
from tests.convert.imported import run
from tests.convert.tiny_llama import logits, make_config, make_weights, write_folder

IDS = np.random.default_rng(5).integers(0, 288, 40)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head_dim": None, "num_key_value_heads": None},
        {"num_key_value_heads": 1, "tie_word_embeddings": True},
        {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None},
    ],
)
def test_logits_are_those_of_the_definition(tmp_path, changes):
    config = make_config(**changes)
    weights = make_weights(config)
    imported = read_llama(write_folder(tmp_path, config, weights))
    expected = logits(config, weights, IDS)
    assert np.abs(expected).max() > 1, "the check would pass for zeros"
    np.testing.assert_allclose(run(imported, IDS), expected, atol=1e-4)


def test_without_the_permutation_logits_would_differ(tmp_path, monkeypatch):
    config = make_config()
    weights = make_weights(config)
    monkeypatch.setattr("paddle_ernie.convert.llama.interleave_rows", lambda weight, _: weight)
    imported = read_llama(write_folder(tmp_path, config, weights))
    assert np.abs(run(imported, IDS) - logits(config, weights, IDS)).max() > 0.1


def test_rows_of_each_head_become_pairs():
    rows = np.arange(12.0)[:, None] * np.ones((1, 3))
    assert interleave_rows(rows, 6)[:, 0].tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


def test_half_precision_shards_and_stored_frequencies(tmp_path):
    config = make_config()
    weights = {name: array.astype(np.float16) for name, array in make_weights(config).items()}
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(6, np.float32)
    names = sorted(weights)
    places = {}
    for number, part in enumerate((names[:10], names[10:])):
        file = f"model-{number}.safetensors"
        save_file({name: weights[name] for name in part}, tmp_path / file)
        places |= dict.fromkeys(part, file)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    imported = read_llama(tmp_path)
    assert {array.dtype for array in imported.arrays.values()} == {np.dtype(np.float32)}
    np.testing.assert_allclose(run(imported, IDS), logits(config, weights, IDS), atol=1e-4)


def test_theta_as_transformers_5_saves_it():
    parameters = {"rope_theta": 123.0, "rope_type": "default"}
    config = make_config(rope_theta=None, rope_scaling=None, rope_parameters=parameters)
    assert llama_config(config, "x").rope_theta == 123
    assert llama_config(make_config(rope_theta=None), "x").rope_theta == 10_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen2"}, "'qwen2' cannot be imported: its attention has biases"),
        ({"model_type": "qwen3"}, "normalises queries and keys"),
        ({"model_type": "gpt2"}, "supported are ernie4_5, ernie4_5_moe, llama, mistral"),
        ({"attention_bias": True}, "attention_bias is True; only models where it is False"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only models where it is 'silu'"),
        ({"sliding_window": 4096}, "sliding_window is 4096"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling is 'llama3'"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling is 'linear'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_scaling is 'yarn'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads"),
        ({"num_attention_heads": "four"}, "not an architecture we can run"),
    ],
)
def test_what_we_would_compute_otherwise_is_refused(changes, message):
    with pytest.raises(InputError, match=f"(?s)^here: .*{re.escape(message)}"):
        llama_config(make_config(**changes), "here")


def test_tensors_that_do_not_fit_are_named(tmp_path):
    config = make_config()
    weights = make_weights(config)
    del weights["model.norm.weight"]
    weights["model.layers.1.self_attn.q_proj.bias"] = np.zeros(48, np.float32)
    weights["model.layers.0.self_attn.q_proj.weight"] = np.zeros((7, 32), np.float32)
    with pytest.raises(InputError) as caught:
        read_llama(write_folder(tmp_path, config, weights))
    message = str(caught.value)
    assert "model.norm.weight: missing" in message
    assert "model.layers.1.self_attn.q_proj.bias: unknown" in message
    assert "model.layers.0.self_attn.q_proj.weight: shape [7, 32], expected [48, 32]" in message


def test_tied_models_may_repeat_the_embedding_but_not_change_it(tmp_path):
    config = make_config(tie_word_embeddings=True)
    weights = make_weights(config)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    assert "lm_head" not in read_llama(write_folder(tmp_path, config, weights)).arrays
    weights["lm_head.weight"][3] += 1
    with pytest.raises(InputError, match=r"lm_head\.weight is not the embedding"):
        read_llama(write_folder(tmp_path, config, weights))
