"""AdamW against a float64 reference, missing gradients, clipping, and its state on the way out
and back."""

import numpy as np
import paddle
import pytest

from paddle_ernie.config.train import TrainConfig
from paddle_ernie.ops import library
from paddle_ernie.train.arrays import host_view
from paddle_ernie.train.optimizer import AdamW, trainable_parameters
from paddle_ernie.utils.errors import CheckpointError

CONFIG = TrainConfig(max_steps=10, weight_decay=0.1, max_grad_norm=1.0)
SHAPES = {"weight": [6, 4], "bias": [4], "rarely_used": [3, 2]}


class Toy(paddle.nn.Layer):
    """A layer with one parameter per entry of SHAPES and one that is not trained."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        for name, shape in SHAPES.items():
            parameter = self.create_parameter(shape)
            parameter.set_value(rng.standard_normal(shape).astype(np.float32))
            self.add_parameter(name, parameter)
        frozen = self.create_parameter([5])
        frozen.stop_gradient = True
        self.add_parameter("frozen", frozen)


def make(seed: int = 0) -> tuple[Toy, AdamW]:
    toy = Toy(seed)
    return toy, AdamW(trainable_parameters(toy), CONFIG)


def set_gradients(optimizer: AdamW, grads: dict[str, np.ndarray | None]) -> None:
    for name, grad in grads.items():
        if grad is not None:
            optimizer.parameters[name].grad = paddle.to_tensor(grad)


def random_gradients(step: int, scale: float = 1.0) -> dict[str, np.ndarray | None]:
    rng = np.random.default_rng(100 + step)
    grads: dict[str, np.ndarray | None] = {
        name: (scale * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    if step % 2:
        grads["rarely_used"] = None
    return grads


def reference_step(weights: dict, moments: dict, grads: dict, step: int, rate: float) -> None:
    """AdamW (Loshchilov and Hutter 2019) in float64, gradients clipped to the global norm."""
    dense = {
        name: np.zeros(SHAPES[name]) if grad is None else grad.astype(np.float64)
        for name, grad in grads.items()
    }
    norm = np.sqrt(sum((grad**2).sum() for grad in dense.values()))
    clip = min(1.0, CONFIG.max_grad_norm / norm)
    b1, b2 = CONFIG.adam_beta1, CONFIG.adam_beta2
    for name, grad in dense.items():
        first, second = moments.setdefault(name, [np.zeros_like(grad), np.zeros_like(grad)])
        first[:] = b1 * first + (1 - b1) * clip * grad
        second[:] = b2 * second + (1 - b2) * (clip * grad) ** 2
        decay = 0.0 if weights[name].ndim == 1 else CONFIG.weight_decay
        weights[name] *= 1 - rate * decay
        unbiased = np.sqrt(second / (1 - b2**step)) + CONFIG.adam_epsilon
        weights[name] -= rate * first / (1 - b1**step) / unbiased


@pytest.mark.parametrize("scale", [1.0, 1e-3], ids=["clipped", "unclipped"])
def test_matches_a_float64_reference_over_ten_steps(scale: float) -> None:
    toy, optimizer = make()
    weights = {name: p.numpy().astype(np.float64) for name, p in optimizer.parameters.items()}
    frozen = toy.frozen.numpy()
    moments: dict = {}
    for step in range(1, 11):
        grads, rate = random_gradients(step, scale), 1e-2 / step
        set_gradients(optimizer, grads)
        optimizer.step(rate, optimizer.gradient_norm())
        reference_step(weights, moments, grads, step, rate)
    for name, expected in weights.items():
        np.testing.assert_allclose(
            optimizer.parameters[name].numpy(), expected, rtol=2e-5, atol=1e-6
        )
    np.testing.assert_array_equal(toy.frozen.numpy(), frozen)


def test_norm_is_that_of_all_gradients() -> None:
    _, optimizer = make()
    grads = random_gradients(2)
    set_gradients(optimizer, grads)
    expected = np.linalg.norm(np.concatenate([grad.ravel() for grad in grads.values()]))
    assert optimizer.gradient_norm() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_norm_shows_a_single_bad_value(value: float) -> None:
    _, optimizer = make()
    grads = random_gradients(2)
    grads["weight"][3, 2] = value
    set_gradients(optimizer, grads)
    assert not np.isfinite(optimizer.gradient_norm())


def test_dropped_gradients_change_nothing() -> None:
    _, optimizer = make()
    set_gradients(optimizer, random_gradients(2))
    optimizer.step(1e-2, optimizer.gradient_norm())
    weights = {name: p.numpy() for name, p in optimizer.parameters.items()}
    moments = {name: array.copy() for name, array in optimizer.state().items()}
    set_gradients(optimizer, random_gradients(4, scale=np.inf))
    optimizer.drop_gradients()
    assert all(p.grad is None for p in optimizer.parameters.values())
    for name, p in optimizer.parameters.items():
        np.testing.assert_array_equal(p.numpy(), weights[name])
    for name, array in optimizer.state().items():
        np.testing.assert_array_equal(array, moments[name])


def test_restored_state_continues_bit_for_bit() -> None:
    _, straight = make()
    for step in range(1, 7):
        set_gradients(straight, random_gradients(step))
        straight.step(1e-2, straight.gradient_norm())
        if step == 3:
            saved = {name: array.copy() for name, array in straight.state().items()}
            weights = {name: p.numpy() for name, p in straight.parameters.items()}

    _, resumed = make(seed=9)
    for name, p in resumed.parameters.items():
        p.set_value(weights[name])
    resumed.restore(saved)
    for step in range(4, 7):
        set_gradients(resumed, random_gradients(step))
        resumed.step(1e-2, resumed.gradient_norm())
    for name, p in resumed.parameters.items():
        assert host_view(p).tobytes() == host_view(straight.parameters[name]).tobytes()
    for name, array in resumed.state().items():
        assert array.tobytes() == straight.state()[name].tobytes()


def test_state_is_that_of_paddles_own_optimizer() -> None:
    """Same names, shapes and meaning, so that either can go on from the other's."""
    _, ours = make()
    theirs, _ = make()
    decayed = {p.name for p in theirs.parameters() if p.ndim >= 2}
    rival = paddle.optimizer.AdamW(
        1e-2,
        CONFIG.adam_beta1,
        CONFIG.adam_beta2,
        CONFIG.adam_epsilon,
        parameters=list(trainable_parameters(theirs).values()),
        weight_decay=CONFIG.weight_decay,
        apply_decay_param_fun=lambda name: name in decayed,
    )
    for step in (2, 4, 6):  # every parameter has a gradient, too small to be clipped
        grads = random_gradients(step, scale=1e-3)
        set_gradients(ours, grads)
        ours.step(1e-2, ours.gradient_norm())
        for name, parameter in trainable_parameters(theirs).items():
            parameter.grad = paddle.to_tensor(grads[name])
        rival.step()
    live = rival.state_dict()
    for name, array in ours.state().items():
        owner, _, moment = name.rpartition(".")
        expected = live[f"{theirs.state_dict()[owner or 'weight'].name}_{moment}_0"].numpy()
        assert array.shape == expected.shape
        np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-12, err_msg=name)


def test_without_compiled_operators_the_steps_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(library, "available", lambda _: False)
        _, optimizer = make()
        for step in range(1, 5):
            set_gradients(optimizer, random_gradients(step))
            optimizer.step(1e-2, optimizer.gradient_norm())
        results.append([p.numpy() for p in optimizer.parameters.values()])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_state_before_the_first_step_is_empty_and_restores() -> None:
    _, optimizer = make()
    assert optimizer.state() == {}
    optimizer.restore({})


def test_state_of_another_model_is_refused_by_name() -> None:
    _, optimizer = make()
    set_gradients(optimizer, random_gradients(2))
    optimizer.step(1e-2, optimizer.gradient_norm())
    state = dict(optimizer.state())
    state["weight.moment1"] = np.zeros((6, 5), np.float32)
    del state["bias.moment2"]
    with pytest.raises(CheckpointError, match=r"bias\.moment2.*\n.*weight\.moment1"):
        optimizer.restore(state)
