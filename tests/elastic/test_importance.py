"""Importance, against a float64 reference of the router and the experts, and known answers."""

import numpy as np
import paddle
import pytest

from paddle_ernie.elastic.importance import mean_loss, measure_importance
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.models.model_dir import model_arrays
from paddle_ernie.utils.errors import InputError
from tests.elastic.conftest import IGNORED, Rows, make_model, make_rows

BATCHES = [make_rows(1, rows=4), make_rows(2, rows=2)]


def moe_inputs(model, layer):
    """float64 [T, D]: what the MoE layer gets on BATCHES."""
    seen = []
    hook = model.layers[layer].mlp.register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].numpy().astype(np.float64))
    )
    with paddle.no_grad():
        for rows in BATCHES:
            model.logits(rows.input_ids, rows.doc_ids, rows.position_ids)
    hook.remove()
    return np.concatenate(seen)


def reference_scores(model, layer):
    """(REAP, frequency), token by token and expert by expert."""
    arrays = {name: array.astype(np.float64) for name, array in model_arrays(model).items()}
    gate, bias, gate_up, down = (
        arrays[f"layers.{layer}.mlp.{name}"]
        for name in ("gate", "correction_bias", "experts_gate_up_proj", "experts_down_proj")
    )
    experts, top_k = model.config.moe_num_experts, model.config.moe_k
    values: list[list[float]] = [[] for _ in range(experts)]
    inputs = moe_inputs(model, layer)
    for x in inputs:
        scores = np.exp(gate @ x - (gate @ x).max())
        probability = scores / scores.sum()
        chosen = np.argsort(-(probability + bias))[:top_k]
        for expert in chosen:
            g, u = np.split(x @ gate_up[expert], 2)
            output = (g / (1 + np.exp(-g)) * u) @ down[expert]
            weight = probability[expert] / probability[chosen].sum()
            values[expert].append(weight * np.linalg.norm(output))
    reap = np.array([np.mean(tokens) if tokens else 0.0 for tokens in values])
    return reap, np.array([len(tokens) / len(inputs) for tokens in values])


@pytest.mark.parametrize(("method", "index"), [("reap", 0), ("frequency", 1)])
def test_expert_scores_match_the_reference(model, method, index):
    importance = measure_importance(model, BATCHES, method)
    assert importance.method == method
    assert importance.expert_scores[:2] == (None, None)
    for layer in model.config.moe_layers:
        wanted = reference_scores(model, layer)[index]
        assert wanted.std() > 0.01 * wanted.mean()
        np.testing.assert_allclose(importance.expert_scores[layer], wanted, rtol=1e-4, atol=1e-6)


def test_frequencies_add_up_to_top_k(model):
    importance = measure_importance(model, BATCHES, "frequency")
    for layer in model.config.moe_layers:
        assert importance.expert_scores[layer].sum() == pytest.approx(model.config.moe_k)


def test_layer_score_is_the_loss_increase_without_it(model):
    importance = measure_importance(model, BATCHES, "reap")
    full = mean_loss(model, BATCHES, Subnet.full(model.config))
    for layer in range(5):
        kept = tuple(other for other in range(5) if other != layer)
        pool = tuple(range(8))
        experts = tuple(() if other < 2 else pool for other in kept)
        without = Subnet(kept, experts, tuple(3 if ids else 0 for ids in experts))
        wanted = mean_loss(model, BATCHES, without) - full
        assert importance.layer_scores[layer] == pytest.approx(wanted, abs=1e-12)


def test_silent_experts_and_layers_score_nothing():
    model = make_model()
    arrays = model_arrays(model)
    arrays["layers.3.mlp.experts_down_proj"][5] = 0
    for name, array in arrays.items():
        if name.startswith("layers.4.") and ("down_proj" in name or "o_proj" in name):
            array[...] = 0
    importance = measure_importance(model, BATCHES, "reap")
    assert importance.expert_scores[3][5] == 0
    assert np.delete(importance.expert_scores[3], 5).min() > 0
    assert importance.layer_scores[4] == 0
    assert min(map(abs, importance.layer_scores[:4])) > 0
    assert importance.best_experts(3, 7) == (0, 1, 2, 3, 4, 6, 7)


def test_an_expert_without_tokens_scores_nothing():
    model = make_model()
    model.correction_biases()[2].set_value(np.array([-9, *[0] * 7], np.float32))
    for method in ("reap", "frequency"):
        assert measure_importance(model, BATCHES, method).expert_scores[2][0] == 0


def test_mean_loss_weighs_targets_equally(model):
    full = Subnet.full(model.config)
    merged = Rows(
        *(
            np.concatenate([getattr(rows, name) for rows in BATCHES])
            for name in ("input_ids", "labels", "doc_ids", "position_ids")
        )
    )
    assert mean_loss(model, BATCHES, full) == pytest.approx(mean_loss(model, [merged], full))


def test_the_model_is_left_as_it_was(model):
    before = {name: array.copy() for name, array in model_arrays(model).items()}
    measure_importance(model, BATCHES, "reap")
    assert all(np.array_equal(model_arrays(model)[name], array) for name, array in before.items())
    assert not any(model.layers[layer].mlp._forward_pre_hooks for layer in (2, 3, 4))


def test_it_can_be_ended_between_passes(model):
    calls = []

    def stop_at_third():
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_importance(model, BATCHES, "reap", before_pass=stop_at_third)
    assert len(calls) == 3


@pytest.mark.parametrize(
    "changes", [{"moe_num_experts": 0}, {"num_hidden_layers": 1, "moe_layer_start_index": 0}]
)
def test_dense_and_single_layer_models_can_be_measured(changes):
    model = make_model(**changes)
    importance = measure_importance(model, BATCHES, "reap")
    assert len(importance.layer_scores) == model.config.num_hidden_layers
    assert np.isfinite(importance.layer_scores).all()


def test_text_without_targets_is_refused(model):
    rows = make_rows(1)
    empty = Rows(rows.input_ids, np.full_like(rows.labels, IGNORED), *rows.arrays()[2:])
    with pytest.raises(InputError, match="no token to predict"):
        measure_importance(model, [empty], "reap")
