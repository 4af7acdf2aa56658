"""Our model computes what Hugging Face's ERNIE 4.5 MoE computes (golden/make_ernie45_moe.py)."""

import json
from pathlib import Path

import numpy as np
import pytest

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.models.hf_names import from_hf, to_hf
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import load_arrays, model_arrays
from paddle_ernie.utils.errors import InputError

GOLDEN = Path(__file__).parents[1] / "golden" / "ernie45_moe.npz"


@pytest.fixture(scope="module", params=["untied", "tied"])
def golden(request) -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as file:
        prefix = f"{request.param}/"
        return {key[len(prefix) :]: file[key] for key in file.files if key.startswith(prefix)}


@pytest.fixture(scope="module")
def config(golden) -> ModelConfig:
    return ModelConfig(**json.loads(str(golden["config"])))


@pytest.fixture(scope="module")
def weights(golden) -> dict[str, np.ndarray]:
    prefix = "weights/"
    return {
        key[len(prefix) :]: array.astype(np.float32)
        for key, array in golden.items()
        if key.startswith(prefix)
    }


@pytest.fixture
def model(config, weights) -> ErnieMoeModel:
    model = ErnieMoeModel(config, seed=None)
    load_arrays(model, from_hf(weights, config))
    return model


def test_logits(golden, model):
    logits = model.logits(golden["input_ids"].astype(np.int64)).numpy()
    np.testing.assert_allclose(logits, golden["logits"], rtol=1e-5, atol=3e-5)


def test_loss_and_gradients(golden, model, config):
    ids = golden["input_ids"].astype(np.int64)
    labels = np.full_like(ids, -100)
    labels[:, :-1] = ids[:, 1:]
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    targets = float((labels >= 0).sum())
    output = model.loss(ids, labels, np.zeros_like(ids), positions, denominator=targets)
    np.testing.assert_allclose(float(output.total), golden["loss"], rtol=1e-6)
    output.total.backward()
    ours = to_hf({name: tensor.grad.numpy() if tensor.grad is not None else tensor.numpy()
                  for name, tensor in model.named_parameters()}, config)  # fmt: skip
    checked = 0
    for key, expected in golden.items():
        if not key.startswith("gradients/"):
            continue
        name = key.removeprefix("gradients/")
        actual = ours[name] if name in ours else stacked(ours, name, config)
        np.testing.assert_allclose(
            actual, expected, rtol=1e-4, atol=2e-6 + 1e-5 * np.abs(expected).max(), err_msg=name
        )
        checked += 1
    assert checked == 11


def stacked(ours: dict[str, np.ndarray], name: str, config: ModelConfig) -> np.ndarray:
    """Hugging Face holds experts as one tensor in memory, [E, out, in], gate before up."""
    prefix, _, matrix = name.rpartition(".")
    parts = ["gate_proj", "up_proj"] if matrix == "gate_up_proj" else ["down_proj"]
    return np.stack(
        [
            np.concatenate([ours[f"{prefix}.{expert}.{part}.weight"] for part in parts])
            for expert in range(config.moe_num_experts)
        ]
    )


def test_biases_matter_in_the_golden_model(golden, model):
    """Otherwise the comparison would not see a wrong use of the bias."""
    for bias in model.correction_biases().values():
        bias.set_value(np.zeros(bias.shape, np.float32))
    logits = model.logits(golden["input_ids"].astype(np.int64)).numpy()
    assert np.abs(logits - golden["logits"]).max() > 0.1


def test_round_trip(config, weights):
    back = to_hf(from_hf(weights, config), config)
    assert back.keys() == weights.keys()
    for name, array in weights.items():
        assert np.array_equal(back[name], array), name


def test_round_trip_with_prediction_block(make_model):
    model = make_model(num_nextn_predict_layers=1)
    arrays = model_arrays(model)
    public = to_hf(arrays, model.config)
    proj = public["model.mtp_linear_proj.0.weight"]
    assert np.array_equal(proj[:, :32], arrays["mtp.proj"][32:].T)  # embedding first
    back = from_hf(public, model.config)
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert np.array_equal(back[name], array), name


def test_missing_weights_are_listed(config, weights):
    lost = ["model.layers.1.mlp.experts.3.up_proj.weight", "model.norm.weight"]
    rest = {name: array for name, array in weights.items() if name not in lost}
    with pytest.raises(InputError) as error:
        from_hf(rest, config)
    assert all(name in str(error.value) for name in lost)
