"""Plans: what each row runs, and that it costs and computes what it should."""

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import load_arrays, model_arrays
from paddle_ernie.models.plan import ExpertGroup, ForwardPlan, LayerPlan, full_plan
from paddle_ernie.ops import library


def layer(*groups: tuple[list[int], list[int] | None, int]) -> LayerPlan:
    """Groups of (rows, experts, top_k)."""
    return LayerPlan(
        tuple(
            ExpertGroup(
                np.array(rows, np.int64), None if pool is None else np.array(pool, np.int64), top_k
            )
            for rows, pool, top_k in groups
        )
    )


MIXED = ForwardPlan(
    5,
    (
        layer(([0, 1, 2, 3, 4], None, 2)),
        layer(([0, 3], None, 2), ([1], [1, 4, 6], 2)),  # rows 2 and 4 skip it
        layer(([1], [0, 2, 5], 2), ([0, 2, 3], None, 2)),  # row 4 skips it
        layer(([0, 2], None, 1), ([3], None, 2), ([1], [0, 7], 1), ([4], [7], 1)),
    ),
)


def row_plan(plan: ForwardPlan, row: int) -> ForwardPlan:
    """What one row of the plan runs, as a plan of one row."""
    layers = tuple(
        layer(*[([0], group.experts, group.top_k) for group in part.groups if row in group.rows])
        for part in plan.layers
    )
    return ForwardPlan(1, layers)


def test_full_plan_is_no_plan(make_model, make_rows, total_loss, gradients):
    model, rows = make_model(), make_rows(3)
    without = total_loss(model, rows)
    expected = gradients(model)
    given = total_loss(model, rows, plan=full_plan(3, 4, 2))
    assert np.array_equal(without.token_loss, given.token_loss)
    assert all(np.array_equal(expected[n], g) for n, g in gradients(model).items())


def test_mixed_plan_equals_its_rows_alone(make_model, make_rows, total_loss, gradients):
    model, rows = make_model(), make_rows(5)
    mixed = total_loss(model, rows, plan=MIXED, balance_weight=0.1)
    found = gradients(model)
    model.clear_gradients(set_to_zero=False)
    loads, balance = np.zeros((4, 8), np.int64), 0.0
    for row in range(5):
        output = model.loss(
            *rows.take(slice(row, row + 1)), plan=row_plan(MIXED, row), denominator=7.0,
            balance_weight=0.1 / 5,
        )  # fmt: skip
        output.total.backward()
        np.testing.assert_allclose(
            output.token_loss[0], mixed.token_loss[row], rtol=1e-4, atol=1e-4
        )
        balance += output.balance_loss / 5
        for stats in output.router:
            loads[stats.layer] += stats.load
    for stats in mixed.router:
        assert np.array_equal(stats.load, loads[stats.layer])
    assert mixed.balance_loss == pytest.approx(balance, rel=1e-5)
    for name, gradient in gradients(model).items():
        np.testing.assert_allclose(found[name], gradient, rtol=2e-3, atol=2e-5, err_msg=name)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_any_plan_equals_its_rows_alone(make_model, make_rows, seed):
    rng = np.random.default_rng(seed)
    model, rows = make_model(), make_rows(4, seed=seed)
    layers = []
    for _ in range(4):
        active = rng.permutation(4)[: rng.integers(0, 5)]
        cuts = np.array_split(active, rng.integers(1, 4))
        groups = []
        for part in filter(len, cuts):
            pool = None if rng.random() < 0.5 else np.sort(rng.permutation(8)[: rng.integers(1, 8)])
            top_k = int(rng.integers(1, 3 if pool is None else len(pool) + 1))
            groups.append((np.sort(part).tolist(), pool, top_k))
        layers.append(layer(*groups))
    plan = ForwardPlan(4, tuple(layers))
    with paddle.no_grad():
        mixed = model.loss(*rows, plan=plan, denominator=1.0).token_loss
        for row in range(4):
            alone = model.loss(
                *rows.take(slice(row, row + 1)), plan=row_plan(plan, row), denominator=1.0
            ).token_loss
            np.testing.assert_allclose(alone[0], mixed[row], rtol=1e-3, atol=1e-3)


def test_a_row_that_skips_everything_keeps_its_embedding(make_model):
    model, ids = make_model(), np.array([[1, 2, 3], [4, 5, 6]])
    plan = ForwardPlan(2, (layer(([0], None, 2)),) * 4)
    logits = model.logits(ids, plan=plan).numpy()
    embedding = model.embed_tokens.numpy()[ids[1]].astype(float)
    normed = embedding / np.sqrt((embedding**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(
        logits[1], normed @ model.embed_tokens.numpy().T, rtol=1e-4, atol=1e-5
    )
    assert np.abs(logits[0] - model.logits(ids[:1]).numpy()[0]).max() < 1e-4


def test_empty_plan_runs_no_layer(make_model, make_rows, total_loss, gradients):
    model = make_model()
    output = total_loss(model, make_rows(2), plan=ForwardPlan(2, (layer(),) * 4))
    assert output.router == ()
    assert set(gradients(model)) == {"embed_tokens", "norm"}


def test_uniform_reduced_plan_is_the_small_model_bit_for_bit(make_model, make_rows, total_loss):
    """Layers 0, 2, 3; experts by layer; top-1."""
    model, rows = make_model(num_nextn_predict_layers=1), make_rows(3)
    kept, pools = [0, 2, 3], {2: [1, 4, 6], 3: [0, 2, 7]}
    plan = ForwardPlan(
        3,
        tuple(
            layer(([0, 1, 2], pools.get(i), 1 if i in pools else 2)) if i in kept else layer()
            for i in range(4)
        ),
    )
    config = model.config.model_copy(
        update={"num_hidden_layers": 3, "moe_num_experts": 3, "moe_k": 1}
    )
    small, arrays = ErnieMoeModel(config, seed=None), {}
    for name, array in model_arrays(model).items():
        parts = name.split(".")
        if parts[0] == "layers":
            if int(parts[1]) not in kept:
                continue
            if parts[-1] in ("gate", "correction_bias") or parts[-1].startswith("experts_"):
                array = array[pools[int(parts[1])]]
            parts[1] = str(kept.index(int(parts[1])))
        arrays[".".join(parts)] = array
    load_arrays(small, arrays)
    inputs = (rows.input_ids, rows.doc_ids, rows.position_ids)
    assert np.array_equal(model.logits(*inputs, plan=plan).numpy(), small.logits(*inputs).numpy())
    losses = [
        total_loss(m, rows, plan=p, mtp_weight=0.3, balance_weight=0.1)
        for m, p in ((model, plan), (small, None))
    ]
    assert float(losses[0].total) == float(losses[1].total)
    large, own = (output.router[0].load for output in losses)
    assert np.array_equal(large[pools[2]], own)
    assert large.sum() == own.sum()


def test_only_used_experts_and_layers_get_gradients(make_model, make_rows, total_loss, gradients):
    model = make_model()
    plan = ForwardPlan(
        2,
        (
            layer(([0, 1], None, 2)),
            layer(([0], [1, 4], 1), ([1], [4, 6], 2)),
            layer(),
            layer(([0, 1], None, 2)),
        ),
    )
    total_loss(model, make_rows(2), plan=plan)
    found = gradients(model)
    assert not any(name.startswith("layers.2.") for name in found)
    for name in ("experts_gate_up_proj", "experts_down_proj", "gate"):
        used = found[f"layers.1.mlp.{name}"].reshape(8, -1).any(axis=1)
        assert set(np.flatnonzero(used)) <= {1, 4, 6}
        assert used[[4, 6]].all()


def test_work_is_proportional_to_active_rows(make_model, make_rows, monkeypatch):
    """Count the multiplications that the plain operators ask Paddle for."""
    monkeypatch.setattr(library, "available", lambda x: False)
    model, rows, work = make_model(), make_rows(4), []
    multiply = paddle.matmul

    def counting(x, y, **flags):
        result = multiply(x, y, **flags)
        inner = x.shape[-2] if flags.get("transpose_x") else x.shape[-1]
        work.append(result.size * inner)
        return result

    monkeypatch.setattr(paddle, "matmul", counting)

    def cost(plan: ForwardPlan) -> int:
        work.clear()
        model.logits(rows.input_ids, plan=plan)
        return sum(work)

    head = cost(ForwardPlan(4, (layer(),) * 4))
    full = cost(full_plan(4, 4, 2)) - head
    quarter = cost(ForwardPlan(4, (layer(([2], None, 2)),) * 4)) - head
    assert quarter == pytest.approx(full / 4, rel=0.01)
    pooled = cost(ForwardPlan(4, (layer(([0, 1, 2, 3], [1, 2, 3, 4], 2)),) * 4)) - head
    assert pooled < full
    assert cost(ForwardPlan(4, (layer(([0, 1, 2, 3], None, 1)),) * 4)) - head < 0.9 * full
