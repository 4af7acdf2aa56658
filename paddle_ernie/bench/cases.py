"""What `tools/bench.py ops` measures: operators, shapes, and the ways a rival has to do them."""

import math
from dataclasses import dataclass
from typing import Any

from paddle_ernie.config.model import ModelConfig

REFERENCE_MODEL = ModelConfig(
    vocab_size=8192,
    hidden_size=256,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    intermediate_size=768,
    moe_num_experts=16,
    moe_k=2,
    moe_intermediate_size=256,
    moe_num_shared_experts=1,
    moe_layer_start_index=1,
    tie_word_embeddings=True,
    max_position_embeddings=512,
)
"""What is compared with other software, and profiled: 1 dense and 5 MoE layers."""
OUR_FORMATS = ("fp32", "bf16", "fp8")
THEIR_FORMATS = ("fp32", "bf16")
EXPERT_ROWS = (1, 4, 16, 64)
EXPERT_SHAPES = ((128, 128), (256, 256), (256, 512), (1024, 128), (1024, 1024))
EXPERTS = 16
ROWS, SEQ_LEN = 4, 512


@dataclass(frozen=True, eq=False)
class Case:
    """One operator at one shape."""

    family: str
    shape: dict[str, Any]
    methods: tuple[str, ...]
    """How the rival can do it."""
    backward: bool = False
    flops: float = 0.0
    """Of a call; 0 where speed is a matter of memory."""
    formats: tuple[str, ...] = OUR_FORMATS
    any_format: bool = False
    """Our speed is related to the rival's fastest in any format, not in the same one."""

    @property
    def name(self) -> str:
        """Operator, shape, direction."""
        return f"{self.family} {self.size}"

    @property
    def size(self) -> str:
        """Shape and direction."""
        if self.family == "adamw":
            parameters = sum(math.prod(size) for size in self.shape["sizes"])
            return f"{len(self.shape['sizes'])} tensors, {parameters:,} parameters"
        text = " ".join(f"{letter}{size}" for letter, size in self.shape.items())
        return text + (", backward too" if self.backward else "")

    def request(self, format_name: str, method: str, seconds: float) -> dict[str, Any]:
        """What a process is asked."""
        return {
            "do": "op",
            "op": self.family,
            "shape": self.shape,
            "format": format_name,
            "method": method,
            "backward": self.backward,
            "seconds": seconds,
        }


def all_cases(model: ModelConfig) -> list[Case]:
    """Products and experts as such, the others at the shapes of a step of `model`."""
    return [_gemm(1024, 1024, 1024), *_experts(), *_attention(model), *_pointwise(model)]


def _gemm(M: int, K: int, N: int) -> Case:
    shape = {"M": M, "K": K, "N": N}
    return Case("gemm", shape, ("mm", "linear", "packed linear"), flops=2.0 * M * K * N)


def _experts() -> list[Case]:
    return [
        Case(
            "experts",
            {"E": EXPERTS, "M": rows, "K": K, "N": N},
            ("loop", "bmm", "grouped_mm", "grouped_mm transposed"),
            flops=2.0 * EXPERTS * rows * K * N,
            any_format=True,
        )
        for K, N in EXPERT_SHAPES
        for rows in EXPERT_ROWS
    ]


def _attention(model: ModelConfig) -> list[Case]:
    H, d = model.num_attention_heads, model.dim_per_head
    shape = {"B": ROWS, "S": SEQ_LEN, "H": H, "G": model.num_key_value_heads, "d": d}
    forward = 2.0 * ROWS * H * SEQ_LEN**2 * d  # two products over the causal half
    return [
        Case(
            "attention",
            shape,
            ("enable_gqa", "repeated keys"),
            backward=backward,
            flops=forward * (3.5 if backward else 1.0),  # five products and scores once more
            formats=("fp32", "bf16"),
        )
        for backward in (False, True)
    ]


def _pointwise(model: ModelConfig) -> list[Case]:
    T, D, V = ROWS * SEQ_LEN, model.hidden_size, model.vocab_size
    assert V is not None, "a benchmark model has a vocab_size"
    slots, fp32 = T * model.moe_k, ("fp32",)
    norm, glu = {"T": T, "D": D}, {"T": slots, "F": model.moe_intermediate_size}
    loss = {"T": T, "D": D, "V": V}
    return [
        *(
            Case("rms_norm", norm, ("rms_norm", "as transformers"), backward, formats=fp32)
            for backward in (False, True)
        ),
        *(Case("swiglu", glu, ("silu",), backward, formats=fp32) for backward in (False, True)),
        Case("cross_entropy", loss, ("linear",), True, 6.0 * T * D * V, formats=("fp32", "bf16")),
        Case("adamw", {"sizes": parameter_sizes(model)}, ("fused", "foreach"), formats=fp32),
    ]


def parameter_sizes(model: ModelConfig) -> list[list[int]]:
    """Shapes of a model's parameters, as the optimizer sees them."""
    D, d, F = model.hidden_size, model.dim_per_head, model.moe_intermediate_size
    E, shared = model.moe_num_experts, model.moe_num_shared_experts
    queries, heads = model.num_attention_heads, model.num_key_value_heads
    sizes = [[model.vocab_size or 0, D], [D]]
    for layer in range(model.num_hidden_layers):
        sizes += [[D], [D], [D, (queries + 2 * heads) * d], [queries * d, D]]
        if model.is_moe_layer(layer):
            sizes += [[E, D], [E, D, 2 * F], [E, F, D]]
            sizes += [[D, 2 * F * shared], [F * shared, D]] if shared else []
        else:
            sizes += [[D, 2 * model.intermediate_size], [model.intermediate_size, D]]
    return sizes
