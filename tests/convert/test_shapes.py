"""Shapes from the configuration are those of the model."""

import pytest

from paddle_ernie.convert.shapes import hollow, our_shapes
from tests.convert.conftest import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_are_the_models(make_model, kind):
    model = make_model(kind)
    expected = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    assert our_shapes(model.config) == expected
    assert {name: array.shape for name, array in hollow(model.config).items()} == expected
