"""A step does not depend on how its batch is split, skips what is not finite, and reports sums."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import paddle
import pytest

from paddle_ernie.config.train import TrainConfig
from paddle_ernie.data.types import IGNORE_LABEL, Batch
from paddle_ernie.elastic.space import ElasticSpace
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import model_arrays
from paddle_ernie.train.arrays import host_view
from paddle_ernie.train.optimizer import AdamW, trainable_parameters
from paddle_ernie.train.step import Stepper, StepResult, count_mtp_targets, micro_batches
from tests.train.tiny import ELASTIC, TINY

ModelFactory = Callable[..., ErnieMoeModel]
BatchFactory = Callable[..., Batch]


def make_stepper(model: ErnieMoeModel, micro: int = 8, elastic: bool = True, **train) -> Stepper:
    settings = {"moe_balance_loss_weight": 0.01, "learning_rate": 1e-2} | train
    config = TrainConfig(max_steps=10, global_batch_size=8, micro_batch_size=micro, **settings)
    optimizer = AdamW(trainable_parameters(model), config)
    space = ElasticSpace(ELASTIC, TINY) if elastic else None
    return Stepper(model, optimizer, config, seed=3, space=space)


def run_steps(stepper: Stepper, batches: list[Batch], rate: float = 1e-2) -> list[StepResult]:
    return [stepper.train_step(batch, rate) for batch in batches]


def copy_arrays(model: ErnieMoeModel) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in model_arrays(model).items()}


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_gradients_and_losses_do_not_depend_on_the_split(
    make_model: ModelFactory, make_batch: BatchFactory, micro: int
) -> None:
    batch = make_batch(8)
    results, gradients = [], []
    for rows in (8, micro):
        stepper = make_stepper(make_model(), rows)
        stepper.optimizer.step = lambda *_: None  # keep the gradients to look at
        results.append(stepper.train_step(batch, 1e-2))
        named = stepper.optimizer.parameters.items()
        gradients.append({n: p.grad.numpy() for n, p in named if p.grad is not None})
    whole, split = results
    assert split.main.weight == whole.main.weight == batch.num_targets
    assert split.main.mean == pytest.approx(whole.main.mean, rel=1e-6)
    assert split.mtp.mean == pytest.approx(whole.mtp.mean, rel=1e-6)
    assert split.balance.mean == pytest.approx(whole.balance.mean, rel=1e-5)
    assert split.grad_norm == pytest.approx(whole.grad_norm, rel=1e-5)
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        scale = max(np.abs(gradient).max(), 1e-6)
        np.testing.assert_allclose(gradients[1][name], gradient, atol=2e-5 * scale, err_msg=name)
    for layer, load in whole.loads.items():
        np.testing.assert_array_equal(split.loads[layer], load)
        assert split.entropy[layer].mean == pytest.approx(whole.entropy[layer].mean, rel=1e-5)


def test_loss_is_the_mean_over_all_targets_not_over_rows(
    make_model: ModelFactory, make_batch: BatchFactory
) -> None:
    batch, model = make_batch(8), make_model()
    logits_BSV = model.logits(batch.input_ids, batch.doc_ids, batch.position_ids).numpy()
    logits_BSV = logits_BSV.astype(np.float64)
    log_z_BS = np.log(np.exp(logits_BSV - logits_BSV.max(-1, keepdims=True)).sum(-1))
    log_z_BS += logits_BSV.max(-1)
    is_target = batch.labels != IGNORE_LABEL
    picked = np.take_along_axis(logits_BSV, np.where(is_target, batch.labels, 0)[..., None], -1)
    expected = (log_z_BS - picked[..., 0])[is_target].mean()
    result = make_stepper(model, 2, elastic=False).train_step(batch, 1e-2)
    assert result.main.mean == pytest.approx(expected, rel=1e-5)
    assert result.axes.keys() == {"full"}


def test_axes_are_the_losses_of_the_rows_reduced_along_them(
    make_model: ModelFactory, make_batch: BatchFactory
) -> None:
    stepper = make_stepper(make_model())
    batch = make_batch(8)
    result = stepper.train_step(batch, 1e-2)
    assert len(result.subnets) == 8
    expected: dict[str, int] = {}
    for row, subnet in enumerate(result.subnets):
        for axis in stepper.space.axes(subnet) or ("full",):
            expected[axis] = expected.get(axis, 0) + batch.rows(row, row + 1).num_targets
    assert {axis: loss.weight for axis, loss in result.axes.items()} == expected
    assert len(expected) > 1, "the seed draws no reduced row: the test would show nothing"


def test_sampled_subnets_follow_the_row_ids(
    make_model: ModelFactory, make_batch: BatchFactory
) -> None:
    stepper = make_stepper(make_model(), micro=2)
    batch = make_batch(8, seed=4)
    result = stepper.train_step(batch, 1e-2)
    space = ElasticSpace(ELASTIC, TINY)
    assert result.subnets == [space.sample(3, int(row_id)) for row_id in batch.row_ids]


def test_training_learns_a_fixed_batch(make_model: ModelFactory, make_batch: BatchFactory) -> None:
    stepper = make_stepper(make_model(), elastic=False)
    results = run_steps(stepper, [make_batch(8)] * 15)
    assert all(result.applied for result in results)
    assert results[-1].main.mean < results[0].main.mean - 1.0


def test_two_runs_are_equal_bit_for_bit(make_model: ModelFactory, make_batch: BatchFactory) -> None:
    batches = [make_batch(8, seed) for seed in range(3)]
    first, second = make_stepper(make_model(), 4), make_stepper(make_model(), 4)
    for one, other in zip(run_steps(first, batches), run_steps(second, batches), strict=True):
        assert one.main == other.main
        assert one.grad_norm == other.grad_norm
    arrays = model_arrays(second.model)
    for name, array in model_arrays(first.model).items():
        assert array.tobytes() == arrays[name].tobytes(), name


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_step_that_is_not_finite_changes_nothing(
    make_model: ModelFactory, make_batch: BatchFactory, value: float
) -> None:
    stepper = make_stepper(make_model())
    stepper.train_step(make_batch(8), 1e-2)
    good = copy_arrays(stepper.model)
    moments = {name: array.copy() for name, array in stepper.optimizer.state().items()}
    broken = next(iter(stepper.optimizer.parameters.values()))
    kept = broken.numpy()
    poisoned = kept.copy()
    poisoned.flat[:] = value
    broken.set_value(poisoned)
    result = stepper.train_step(make_batch(8, 1), 1e-2)
    assert not result.applied
    broken.set_value(kept)
    for name, array in model_arrays(stepper.model).items():
        np.testing.assert_array_equal(array, good[name], err_msg=name)
    for name, array in stepper.optimizer.state().items():
        np.testing.assert_array_equal(array, moments[name], err_msg=name)
    assert stepper.train_step(make_batch(8, 2), 1e-2).applied


def test_biases_move_by_the_speed_and_get_no_gradient(
    make_model: ModelFactory, make_batch: BatchFactory
) -> None:
    stepper = make_stepper(make_model(), moe_bias_update_speed=0.5)
    result = stepper.train_step(make_batch(8), 1e-2)
    biases = stepper.model.correction_biases()
    assert set(biases) == set(result.loads) == set(TINY.moe_layers)
    for layer, load in result.loads.items():
        np.testing.assert_array_equal(
            host_view(biases[layer]), (0.5 * np.sign(load.mean() - load)).astype(np.float32)
        )
    trained = {id(p) for p in stepper.optimizer.parameters.values()}
    assert not trained & {id(bias) for bias in biases.values()}


def test_parameters_of_layers_that_no_row_ran_still_decay_their_moments(
    make_model: ModelFactory, make_batch: BatchFactory
) -> None:
    """A skipped layer gets a zero gradient, exactly as an expert that no token chose does."""
    stepper = make_stepper(make_model(), elastic=False)
    stepper.train_step(make_batch(8), 1e-2)
    before = {n: a.copy() for n, a in stepper.optimizer.state().items() if "moment1" in n}
    full = stepper._fixed
    stepper._fixed = dataclasses.replace(
        full, layers=full.layers[:2], experts=full.experts[:2], top_k=full.top_k[:2]
    )
    stepper.train_step(make_batch(8, 1), 1e-2)
    after = stepper.optimizer.state()
    skipped = [name for name in before if ".2." in name]
    assert skipped
    for name in skipped:
        np.testing.assert_allclose(after[name], np.float32(0.9) * before[name], rtol=1e-6)


def test_mtp_targets_are_counted_as_the_model_counts_them(
    make_model: ModelFactory, make_batch: BatchFactory
) -> None:
    """With one denominator for the sum, a model that counts otherwise would give another mean."""
    batch = make_batch(8)
    expected = sum(
        bool(doc[i] == doc[i + 2] and row[i] != IGNORE_LABEL and row[i + 1] != IGNORE_LABEL)
        for row, doc in zip(batch.labels, batch.doc_ids, strict=True)
        for i in range(len(row) - 2)
    )
    assert count_mtp_targets(batch) == expected


def test_micro_batches_cover_the_batch(make_batch: BatchFactory) -> None:
    batch = make_batch(8)
    pieces = list(micro_batches(batch, 2))
    assert [len(piece) for piece in pieces] == [2] * 4
    np.testing.assert_array_equal(np.concatenate([p.row_ids for p in pieces]), batch.row_ids)


def test_paddle_generator_restarts_with_the_row(
    make_model: ModelFactory, make_batch: BatchFactory
) -> None:
    """What an operator would draw after a step depends on the step alone, not on the past."""
    stepper = make_stepper(make_model())
    draws = []
    for noise in (1, 2):
        paddle.rand([noise])
        stepper.train_step(make_batch(8), 1e-2)
        draws.append(paddle.rand([4]).numpy())
    np.testing.assert_array_equal(*draws)
