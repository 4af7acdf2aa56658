import numpy as np
import paddle
import pytest

from paddle_ernie.models.moe import balance_loss
from paddle_ernie.models.rows import RowInputs
from paddle_ernie.models.stats import mean_entropy
from paddle_ernie.ops.numerics import Numerics


def test_moe_layer_equals_token_by_token(make_model):
    moe = make_model(moe_num_shared_experts=2).layers[1].mlp
    from paddle_ernie.models.plan import full_plan

    x = np.random.default_rng(0).standard_normal((6, 32)).astype(np.float32)
    rows = RowInputs(None, np.ones((6, 1), np.complex64), 3, Numerics())
    tokens, groups = paddle.to_tensor(x), full_plan(2, 1, 2).layers[0].groups
    result, _ = moe(tokens, tokens, groups, rows, None, False)

    def mlp(gate_up, down, row):
        gate, up = np.split(row @ gate_up, 2)
        return (gate / (1 + np.exp(-gate)) * up) @ down

    weights = {name: tensor.numpy().astype(float) for name, tensor in moe.named_parameters()}
    for row, actual in zip(x.astype(float), result.numpy(), strict=True):
        scores = np.exp(weights["gate"] @ row)
        scores /= scores.sum()
        chosen = np.argsort(-(scores + weights["correction_bias"]))[:2]
        expected = mlp(
            weights["shared_experts.gate_up_proj"], weights["shared_experts.down_proj"], row
        )
        for expert in chosen:
            answer = mlp(
                weights["experts_gate_up_proj"][expert], weights["experts_down_proj"][expert], row
            )
            expected = expected + scores[expert] / scores[chosen].sum() * answer
        np.testing.assert_allclose(actual, row + expected, rtol=1e-4, atol=1e-5)


def test_balance_loss_by_the_formula():
    rng = np.random.default_rng(0)
    probability = rng.random((8, 4)).astype(np.float32)
    probability /= probability.sum(1, keepdims=True)
    chosen = np.array([rng.permutation(4)[:2] for _ in range(8)])
    expected = 0.0
    for row in (slice(0, 4), slice(4, 8)):
        for expert in range(4):
            f = 4 / (2 * 4) * (chosen[row] == expert).any(axis=1).sum()
            expected += f * probability[row, expert].mean()
    actual = balance_loss(paddle.to_tensor(probability), chosen, 4)
    assert float(actual) == pytest.approx(expected, rel=1e-5)


def test_balanced_routing_has_balance_loss_one():
    probability = paddle.full([4, 4], 0.25)
    chosen = np.array([[0, 1], [2, 3], [0, 1], [2, 3]])
    assert float(balance_loss(probability, chosen, 4)) == pytest.approx(1.0)


def test_balance_loss_pushes_probability_off_the_crowded_expert():
    probability = paddle.to_tensor([[0.7, 0.3], [0.6, 0.4]], stop_gradient=False)
    balance_loss(probability, np.array([[0], [0]]), 2).backward()
    assert probability.grad.numpy().tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_entropy():
    uniform, certain = np.full((3, 4), 0.25, np.float32), np.eye(4, dtype=np.float32)[:1]
    assert mean_entropy([uniform]) == pytest.approx(1.0)
    assert mean_entropy([certain]) == pytest.approx(0.0)
    assert mean_entropy([uniform, certain]) == pytest.approx(0.75)
    assert mean_entropy([np.ones((2, 1), np.float32)]) == 0.0
    assert mean_entropy([]) == 0.0
