import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.models.model import ErnieMoeModel


def test_same_seed_same_weights(tiny):
    first, again, other = (
        dict(ErnieMoeModel(tiny, seed=seed).named_parameters()) for seed in (3, 3, 4)
    )
    for name, tensor in first.items():
        assert np.array_equal(tensor.numpy(), again[name].numpy()), name
        assert tensor.ndim == 1 or not np.array_equal(tensor.numpy(), other[name].numpy()), name


def test_initial_weights_have_the_configured_spread(make_model):
    model = ErnieMoeModel(make_model().config.model_copy(update={"initializer_range": 0.02}))
    for name, tensor in model.named_parameters():
        array = tensor.numpy()
        if array.ndim == 1:
            assert (array == (0 if "bias" in name else 1)).all(), name
        else:
            assert array.std() == pytest.approx(0.02, rel=0.15), name
            assert abs(array.mean()) < 0.003, name


@pytest.mark.parametrize("tied", [True, False])
def test_loss_is_the_cross_entropy_of_the_logits(make_model, make_rows, total_loss, tied):
    model, rows = make_model(tie_word_embeddings=tied), make_rows(3)
    output = total_loss(model, rows, denominator=5.0)
    logits = model.logits(rows.input_ids, rows.doc_ids, rows.position_ids).numpy().astype(float)
    assert logits.shape == (3, 20, 96)
    log_total = np.log(np.exp(logits).sum(-1))
    has_target = rows.labels >= 0
    picked = np.take_along_axis(logits, np.maximum(rows.labels, 0)[..., None], -1)[..., 0]
    expected = np.where(has_target, log_total - picked, 0)
    np.testing.assert_allclose(output.token_loss, expected, rtol=1e-4, atol=1e-5)
    assert float(output.total) == pytest.approx(expected.sum() / 5, rel=1e-5)
    assert not output.token_loss[~has_target].any()


def test_tied_head_is_the_embedding(make_model):
    tied, untied = make_model(), make_model(tie_word_embeddings=False)
    assert "lm_head" not in dict(tied.named_parameters())
    ids = np.array([[1, 2, 3]])
    head = dict(untied.named_parameters())["lm_head"]
    assert not np.allclose(tied.logits(ids).numpy(), untied.logits(ids).numpy(), atol=1e-3)
    head.set_value(untied.embed_tokens)
    assert np.array_equal(tied.logits(ids).numpy(), untied.logits(ids).numpy())


def test_every_parameter_gets_a_gradient_except_the_biases(
    make_model, make_rows, total_loss, gradients
):
    model = make_model(num_nextn_predict_layers=1, tie_word_embeddings=False)
    total_loss(model, make_rows(4), mtp_weight=0.3, balance_weight=0.01)
    found = gradients(model)
    for name, tensor in model.named_parameters():
        if name.endswith("correction_bias"):
            assert tensor.stop_gradient and name not in found
        else:
            assert found[name].any(), name


def test_gradient_is_the_slope_of_the_loss(make_model, make_rows, total_loss, gradients):
    """Along a random direction. With all experts chosen no route flips: the loss is smooth."""
    shape = {"num_nextn_predict_layers": 1, "moe_k": 8}
    model, rows = make_model(**shape), make_rows(4)
    options = {"mtp_weight": 0.3, "balance_weight": 0.1, "denominator": 40.0}
    total_loss(model, rows, **options)
    rng, slope, direction = np.random.default_rng(0), 0.0, {}
    for name, gradient in gradients(model).items():
        direction[name] = rng.standard_normal(gradient.shape).astype(np.float32)
        slope += float((direction[name].astype(float) * gradient).sum())
    sides = []
    for step in (3e-4, -3e-4):
        moved = make_model(**shape)
        for name, tensor in moved.named_parameters():
            if name in direction:
                tensor.set_value(tensor.numpy() + np.float32(step) * direction[name])
        sides.append(float(total_loss(moved, rows, **options).total))
    assert (sides[0] - sides[1]) / 6e-4 == pytest.approx(slope, rel=0.01)


def test_micro_batches_add_up(make_model, make_rows, total_loss, gradients):
    model, rows = make_model(num_nextn_predict_layers=1), make_rows(4)
    options = {"denominator": 55.0, "mtp_weight": 0.3, "mtp_denominator": 40.0}
    whole = total_loss(model, rows, **options)
    whole_gradients = gradients(model)
    model.clear_gradients(set_to_zero=False)
    total, loads = 0.0, {}
    for part in (slice(0, 1), slice(1, 4)):
        output = model.loss(*rows.take(part), **options)
        output.total.backward()
        total += float(output.total)
        for stats in output.router:
            loads[stats.layer] = loads.get(stats.layer, 0) + stats.load
    assert total == pytest.approx(float(whole.total), rel=1e-5)
    for stats in whole.router:
        assert np.array_equal(loads[stats.layer], stats.load)
    for name, gradient in gradients(model).items():
        np.testing.assert_allclose(gradient, whole_gradients[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mtp", [0, 1])
def test_recompute_changes_nothing(make_model, make_rows, total_loss, gradients, mtp):
    model, rows = make_model(num_nextn_predict_layers=mtp), make_rows(3)
    options = {"mtp_weight": 0.3 * mtp, "balance_weight": 0.01}
    plain = total_loss(model, rows, **options)
    expected = gradients(model)
    again = total_loss(model, rows, recompute=True, **options)
    assert float(plain.total) == float(again.total)
    assert np.array_equal(plain.token_loss, again.token_loss)
    assert len(plain.router) == len(again.router) == 3
    for one, two in zip(plain.router, again.router, strict=True):
        assert np.array_equal(one.load, two.load)
    found = gradients(model)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        # Uses of one tensor may add their gradients in another order.
        np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=1e-6, err_msg=name)


def test_repeated_passes_are_bit_identical(make_model, make_rows, total_loss, gradients):
    rows, results = make_rows(3), []
    for _ in range(2):
        model = make_model()
        results.append((float(total_loss(model, rows).total), gradients(model)))
    assert results[0][0] == results[1][0]
    for name, gradient in results[0][1].items():
        assert np.array_equal(gradient, results[1][1][name]), name


def test_router_stats_count_every_assignment(make_model, make_rows, total_loss):
    output = total_loss(make_model(), make_rows(3))
    assert [stats.layer for stats in output.router] == [1, 2, 3]
    for stats in output.router:
        assert stats.load.dtype == np.int64
        assert stats.load.sum() == 3 * 20 * 2
        assert 0 < stats.entropy < 1


@settings(max_examples=15, deadline=None)
@given(position=st.integers(0, 19), token=st.integers(0, 95), seed=st.integers(0, 50))
def test_a_token_reaches_only_later_positions_of_its_document(
    make_model, make_rows, position, token, seed
):
    model, rows = make_model(), make_rows(1, seed=seed)
    changed = rows.input_ids.copy()
    changed[0, position] = token
    with paddle.no_grad():
        before, after = (
            model.logits(ids, rows.doc_ids, rows.position_ids).numpy()[0]
            for ids in (rows.input_ids, changed)
        )
    reached = (rows.doc_ids[0] == rows.doc_ids[0, position]) & (np.arange(20) >= position)
    np.testing.assert_allclose(before[~reached], after[~reached], rtol=1e-4, atol=1e-5)
    if changed[0, position] != rows.input_ids[0, position]:
        assert np.abs(before[reached] - after[reached]).max() > 1e-3


def test_a_packed_document_is_scored_as_if_alone(make_model, make_rows):
    model, rows = make_model(), make_rows(1)
    packed = model.logits(rows.input_ids, rows.doc_ids, rows.position_ids).numpy()[0]
    for document in np.unique(rows.doc_ids):
        inside = rows.doc_ids[0] == document
        alone = model.logits(rows.input_ids[:, inside]).numpy()[0]
        np.testing.assert_allclose(packed[inside], alone, rtol=1e-4, atol=1e-5)


def test_dense_model(make_model, make_rows, total_loss):
    model = make_model(moe_num_experts=0)
    output = total_loss(model, make_rows(2), balance_weight=0.1)
    assert output.router == ()
    assert output.balance_loss == 0
    assert model.correction_biases() == {}


def test_model_without_shared_experts(make_model, make_rows, total_loss):
    model = make_model(moe_num_shared_experts=0)
    assert not any("shared" in name for name, _ in model.named_parameters())
    assert np.isfinite(float(total_loss(model, make_rows(2)).total))


def test_no_targets_give_zero_loss_and_gradients(make_model, make_rows, total_loss, gradients):
    model, rows = make_model(), make_rows(2)
    rows.labels[...] = -100
    assert float(total_loss(model, rows).total) == 0
    assert not any(gradient.any() for gradient in gradients(model).values())


def test_last_only_is_the_last_row_of_the_logits(make_model):
    model, ids = make_model(), np.array([[5, 6, 7], [8, 9, 1]])
    np.testing.assert_allclose(
        model.logits(ids, last_only=True).numpy(), model.logits(ids).numpy()[:, -1:], atol=1e-5
    )


def test_packed_weights_are_those_of_the_moment(make_model, make_rows):
    """A changed weight shows in the next pass; with kept packs only in a new `numerics`."""
    model, rows = make_model(), make_rows(2)
    before = model.logits(rows.input_ids).numpy()
    kept = model.numerics()
    assert np.array_equal(model.logits(rows.input_ids, numerics=kept).numpy(), before)
    model.layers[0].self_attn.o_proj.set_value(model.layers[0].self_attn.o_proj * 2)
    after = model.logits(rows.input_ids).numpy()
    assert not np.array_equal(after, before)
    assert np.array_equal(model.logits(rows.input_ids, numerics=model.numerics()).numpy(), after)
