"""Experts that are copies: the same function, whatever the router says."""

import numpy as np
import pytest

from paddle_ernie.convert.llama import read_llama
from paddle_ernie.convert.upcycle import upcycle
from paddle_ernie.models.model_dir import load_model_dir, save_model_dir
from paddle_ernie.utils.errors import InputError
from tests.convert.imported import run
from tests.convert.tiny_llama import make_config, make_weights, write_folder

IDS = np.random.default_rng(5).integers(0, 288, 40)


@pytest.fixture
def dense(tmp_path):
    config = make_config()
    return read_llama(write_folder(tmp_path / "llama", config, make_weights(config)))


@pytest.mark.parametrize(("experts", "top_k"), [(4, 1), (4, 2), (6, 6), (1, 1)])
def test_logits_stay(dense, experts, top_k):
    found = upcycle(dense, num_experts=experts, top_k=top_k)
    config = found.config
    assert (config.moe_layers, config.moe_num_experts, config.moe_k) == ((1, 2), experts, top_k)
    assert config.moe_num_shared_experts == 0
    np.testing.assert_allclose(run(found, IDS), run(dense, IDS), atol=1e-5)


def test_routers_are_small_different_and_of_the_seed(dense):
    first, same, other = (
        upcycle(dense, num_experts=8, top_k=2, seed=seed).arrays for seed in (3, 3, 4)
    )
    gates = [first[f"layers.{layer}.mlp.gate"] for layer in (1, 2)]
    assert not np.array_equal(*gates)
    assert 0.01 < np.std(gates) < 0.03
    assert np.array_equal(gates[0], same["layers.1.mlp.gate"])
    assert not np.array_equal(gates[0], other["layers.1.mlp.gate"])
    assert not first["layers.1.mlp.correction_bias"].any()


def test_a_saved_model_holds_every_expert_for_itself(dense, tmp_path):
    found = upcycle(dense, num_experts=3, top_k=2)
    save_model_dir(tmp_path / "moe", found.arrays, found.config, None)
    experts = load_model_dir(tmp_path / "moe").layers[1].mlp.experts_down_proj.numpy()
    assert experts.shape == (3, 40, 32)
    for expert in experts:
        assert np.array_equal(expert, dense.arrays["layers.1.mlp.down_proj"])


def test_what_cannot_be_upcycled(dense):
    moe = upcycle(dense, num_experts=4, top_k=2)
    with pytest.raises(InputError, match="has 4 experts in 2 layers already"):
        upcycle(moe, num_experts=4, top_k=2)
    with pytest.raises(InputError, match="top-k is 5; expected 1 to 4"):
        upcycle(dense, num_experts=4, top_k=5)


def test_a_single_layer_has_no_room(tmp_path):
    config = make_config(num_hidden_layers=1)
    single = read_llama(write_folder(tmp_path, config, make_weights(config)))
    with pytest.raises(InputError, match="keeps the first layer dense"):
        upcycle(single, num_experts=4, top_k=2)
