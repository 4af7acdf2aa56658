"""`precision:` how operands of matrix products are rounded, in training and in every evaluation."""

from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from paddle_ernie.config.base import Section, key_fault

Gemm = Literal["forward", "dgrad", "wgrad"]


class PrecisionConfig(Section):
    """Sums, master weights, norms, router, softmax, losses and the optimizer are fp32 always."""

    dtype: Literal["fp32", "bf16"] = "fp32"
    """Operands of matrix products: fp32, or rounded to bf16."""
    fp8: bool = False
    """E4M3 operands with block scales for attention projections, experts, shared experts and dense
    MLPs; needs `dtype: bf16`, which embedding, output layer and attention keep."""
    fp8_gemms: list[Gemm] = Field(["forward", "dgrad", "wgrad"])
    """Products that `fp8` covers: the forward pass, gradients of activations, of weights."""
    fp8_scales: Literal["fp32", "ue8m0"] = "fp32"
    """Block scales: max|x| / 448 as it is, or rounded up to a power of two."""

    @model_validator(mode="after")
    def _check_fp8(self) -> Self:
        if self.fp8 and self.dtype != "bf16":
            raise key_fault(
                "dtype", "fp8 is on and dtype is fp32; FP8 values are made from bf16: set bf16"
            )
        return self
