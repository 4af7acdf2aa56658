"""GGUF files as llama.cpp's converters write them, beside a NumPy Llama in float64."""

import gguf
import numpy as np
import pytest

from paddle_ernie.convert.gguf_file import read_gguf
from paddle_ernie.utils.errors import CheckpointError, InputError
from tests.convert.imported import run
from tests.convert.tiny_gguf import rounded, vocabulary, write_gguf
from tests.convert.tiny_llama import logits, make_config, make_weights

VOCABULARY = len(vocabulary()[0])
IDS = np.random.default_rng(5).integers(0, VOCABULARY, 40)
# Widths are multiples of 32, the block of the quantised formats.
CONFIG = make_config(vocab_size=VOCABULARY, head_dim=16, intermediate_size=64)
Types = gguf.GGMLQuantizationType


@pytest.mark.parametrize("dtype", [Types.F32, Types.F16, Types.Q8_0, Types.Q4_1])
def test_logits_are_those_of_the_stored_values(tmp_path, dtype):
    weights = make_weights(CONFIG)
    imported = read_gguf(write_gguf(tmp_path / "m.gguf", CONFIG, weights, dtype=dtype), tmp_path)
    left = {name: rounded(array, dtype) for name, array in weights.items()}
    np.testing.assert_allclose(run(imported, IDS), logits(CONFIG, left, IDS), atol=1e-4)


def test_bf16_is_read(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", CONFIG, make_weights(CONFIG), dtype=Types.BF16)
    found = read_gguf(path, tmp_path).arrays["embed_tokens"]
    expected = make_weights(CONFIG)["model.embed_tokens.weight"]
    np.testing.assert_allclose(found, expected, rtol=2**-8)
    assert not np.array_equal(found, expected)


def test_configuration(tmp_path):
    config = make_config(vocab_size=VOCABULARY, tie_word_embeddings=True, rms_norm_eps=1e-5)
    path = write_gguf(tmp_path / "m.gguf", config, make_weights(config))
    found = read_gguf(path, tmp_path).config
    assert found.tie_word_embeddings and found.moe_layers == ()
    assert (found.rms_norm_eps, found.rope_theta, found.head_dim) == (1e-5, 5000, 12)
    assert (found.vocab_size, found.max_position_embeddings) == (VOCABULARY, 64)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"llama.rope.scaling.type": "linear"}, "rotary embedding scaled by 'linear'"),
        ({"llama.expert_count": 8}, "8 experts; only dense Llama"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8, expected .* head, 16"),
        ({"llama.attention.value_length": 8}, "value_length is 8"),
        ({"llama.attention.scale": 0.5}, "do not reproduce:\n  llama.attention.scale = 0.5"),
        ({"llama.block_count": None}, "settings are missing: block_count"),
        ({"llama.attention.head_count_kv": [2, 2, 1]}, "differs between layers"),
        ({"llama.attention.head_count_kv": 3}, "not an architecture we can run"),
        ({"llama.feed_forward_length": 96}, "shape .*, expected"),
        ({"split.count": 3}, "one of 3 parts; join them"),
    ],
)
def test_what_we_would_compute_otherwise_is_refused(tmp_path, extra, message):
    path = write_gguf(tmp_path / "m.gguf", CONFIG, make_weights(CONFIG), extra=extra)
    with pytest.raises(InputError, match=f"(?s)m.gguf: .*{message}"):
        read_gguf(path, tmp_path)


def test_other_architectures_are_refused(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", CONFIG, make_weights(CONFIG), architecture="qwen2")
    with pytest.raises(InputError, match="architecture 'qwen2'; only 'llama'"):
        read_gguf(path, tmp_path)


def test_frequency_factors_are_refused_unless_they_are_one(tmp_path):
    factors = np.ones(8, np.float32)
    for value, refused in ((1, False), (8, True)):
        factors[3] = value
        path = write_gguf(
            tmp_path / "m.gguf",
            CONFIG,
            make_weights(CONFIG),
            tensors={"rope_freqs.weight": factors},
        )
        if refused:
            with pytest.raises(InputError, match=r"scaled by rope_freqs\.weight, as in Llama 3\.1"):
                read_gguf(path, tmp_path)
        else:
            read_gguf(path, tmp_path)


def test_biases_are_refused_by_name(tmp_path):
    extra = {"blk.1.attn_q.bias": np.zeros(64, np.float32)}
    path = write_gguf(tmp_path / "m.gguf", CONFIG, make_weights(CONFIG), tensors=extra)
    with pytest.raises(InputError, match=r"model\.layers\.1\.self_attn\.q_proj\.bias: unknown"):
        read_gguf(path, tmp_path)


@pytest.mark.parametrize("share", [0, 0.001, 0.3, 0.999])
def test_a_cut_file_is_refused(tmp_path, share):
    path = write_gguf(tmp_path / "m.gguf", CONFIG, make_weights(CONFIG))
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(CheckpointError, match=r"m\.gguf: not a whole GGUF file"):
        read_gguf(path, tmp_path)


def test_a_model_whose_tokenizer_we_cannot_build_has_none_and_says_so(tmp_path):
    extra = {"tokenizer.ggml.model": "llama"}
    path = write_gguf(tmp_path / "m.gguf", CONFIG, make_weights(CONFIG), extra=extra)
    imported = read_gguf(path, tmp_path)
    assert imported.tokenizer_dir is None
    assert "its tokenizer is of type 'llama'" in imported.notes[0]
