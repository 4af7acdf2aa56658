import pytest
from pydantic import ValidationError

from paddle_ernie.config.precision import PrecisionConfig


def test_fp8_needs_bf16_around_it():
    with pytest.raises(ValidationError, match="set bf16"):
        PrecisionConfig(fp8=True)
    assert PrecisionConfig(dtype="bf16", fp8=True).fp8_gemms == ["forward", "dgrad", "wgrad"]


@pytest.mark.parametrize("fields", [{"dtype": "fp16"}, {"fp8_gemms": ["backward"]}, {"fp9": True}])
def test_unknown_values_are_refused(fields):
    with pytest.raises(ValidationError):
        PrecisionConfig(**fields)
