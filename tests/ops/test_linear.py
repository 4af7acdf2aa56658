import numpy as np
import paddle
import pytest

from paddle_ernie.ops import library, reference
from paddle_ernie.ops.linear import linear, linear_transposed
from paddle_ernie.ops.numerics import BF16, FP8, FP32, Numerics, Recipe

MIXED = Recipe("fp8", "bf16", "fp32", power_of_two_scales=True)
TURNED = Recipe("fp32", "fp8", "fp8", power_of_two_scales=True)
RECIPES = {"fp32": FP32, "bf16": BF16, "fp8": FP8, "mixed": MIXED, "turned": TURNED}
ROW_TILE, COLUMN_TILE, BLOCK = (1, 128), (128, 1), (128, 128)


@pytest.fixture(params=["kernels", "plain"])
def body(request, monkeypatch):
    """Runs the test with the compiled library and without."""
    if request.param == "plain":
        monkeypatch.setattr(library, "available", lambda x: False)
        monkeypatch.setattr(library, "loaded", lambda: False)


def test_linear_equals_reference(check_operator, rng):
    check_operator(
        linear, reference.linear, [rng.standard_normal((5, 4)), rng.standard_normal((4, 3))]
    )


def test_linear_transposed_equals_reference(check_operator, rng):
    check_operator(
        linear_transposed,
        lambda x, weight: reference.linear(x, weight.T),
        [rng.standard_normal((5, 4)), rng.standard_normal((3, 4))],
    )


def gradients_by_recipe(x, weight, dy, recipe: Recipe) -> tuple[np.ndarray, ...]:
    """y, dx and dweight [I, O] of the operands that each product's format rounds to."""
    scales = recipe.power_of_two_scales

    def product(left, right, format, right_block):
        left = reference.operand(left, format, ROW_TILE, scales)
        return left @ reference.operand(right, format, right_block, scales)

    return (
        product(x, weight, recipe.forward, BLOCK),
        product(dy, weight.T, recipe.dgrad, BLOCK),
        product(x.T, dy, recipe.wgrad, COLUMN_TILE),
    )


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
@pytest.mark.usefixtures("body")
def test_each_product_has_its_format(recipe, transposed, rng):
    x, weight, dy = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((150, 200), (200, 70), (150, 70))
    )
    x_TI = paddle.to_tensor(x, stop_gradient=False)
    stored = np.ascontiguousarray(weight.T) if transposed else weight
    parameter = paddle.to_tensor(stored, stop_gradient=False)
    operator = linear_transposed if transposed else linear
    y_TO = operator(x_TI, parameter, Numerics(recipe))
    y_TO.backward(paddle.to_tensor(dy))
    expected = gradients_by_recipe(x, weight, dy, recipe)
    gradient = parameter.grad.numpy()
    found = y_TO.numpy(), x_TI.grad.numpy(), gradient.T if transposed else gradient
    for result, value in zip(found, expected, strict=True):
        # Sums of 70 to 200 products of size 1 in float32; rounding to bf16 is off 100 times more.
        np.testing.assert_allclose(result, value, atol=4e-5)


def test_weights_are_packed_once_per_layout(rng):
    numerics = Numerics(BF16)
    x = paddle.to_tensor(rng.standard_normal((4, 8)).astype(np.float32), stop_gradient=False)
    weight = paddle.to_tensor(rng.standard_normal((8, 3)).astype(np.float32), stop_gradient=False)
    first = linear(x, weight, numerics)
    first.sum().backward()
    weight.set_value(paddle.zeros_like(weight))  # breaks the promise, to see that packs are kept
    np.testing.assert_array_equal(linear(x, weight, numerics).numpy(), first.numpy())
    numerics.packs.clear()
    assert not linear(x, weight, numerics).numpy().any()


@pytest.mark.usefixtures("body")
def test_only_wanted_gradients(rng):
    x = paddle.to_tensor(rng.standard_normal((4, 8)).astype(np.float32))
    weight = paddle.to_tensor(rng.standard_normal((8, 3)).astype(np.float32), stop_gradient=False)
    linear(x, weight).sum().backward()
    assert x.grad is None
    assert weight.grad is not None
    weight.stop_gradient, x.stop_gradient = True, False
    weight.clear_gradient()
    linear(x, weight).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("recipe", [FP32, BF16, FP8])
@pytest.mark.usefixtures("body")
def test_no_tokens(recipe):
    x = paddle.empty([0, 8])
    weight = paddle.ones([8, 3])
    x.stop_gradient = weight.stop_gradient = False
    y = linear(x, weight, Numerics(recipe))
    assert y.shape == [0, 3]
    y.sum().backward()
    assert x.grad.shape == [0, 8]
    assert not weight.grad.numpy().any()


def test_gradients_that_come_as_views(rng):
    x = paddle.to_tensor(rng.standard_normal((4, 8)).astype(np.float32), stop_gradient=False)
    weight = paddle.to_tensor(rng.standard_normal((8, 3)).astype(np.float32), stop_gradient=False)
    dy = rng.standard_normal((3, 4)).astype(np.float32)
    (linear(x, weight).T * paddle.to_tensor(dy)).sum().backward()
    np.testing.assert_allclose(weight.grad.numpy(), x.numpy().T @ dy.T, rtol=1e-5, atol=1e-5)
