"""One inference step of a whole model in one call of the library. Called by `models.inference`.

    weights --pack--> one block of bytes --step, with pages and a batch--> logits, chosen experts

The block is a copy, in the layout of the instruction set in use. A step does not hold Python's
lock. There is no plain body: `models.composed_step` is what runs without the library.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cache
from typing import Any

import numpy as np
import paddle

from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import contiguous
from paddle_ernie.ops.library import address
from paddle_ernie.ops.numerics import FORMATS, Recipe
from paddle_ernie.ops.paged_attention import KVPages, PagedBatch
from paddle_ernie.ops.rope import rope_rotations
from paddle_ernie.utils.errors import InputError

FEWEST_POSITIONS = 1024
"""Rotations are made for so many positions at first, then for twice as many whenever they end."""


@dataclass(frozen=True)
class StepShape:
    """The fields of csrc/cpu/model_weights.h, in its order."""

    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    num_dense_layers: int
    """The first ones; the others have experts."""
    dense_width: int
    num_experts: int
    top_k: int
    expert_width: int
    shared_width: int
    """Of all shared experts together; 0: none."""
    tied: bool


class _StepCall(ctypes.Structure):
    """The fields of csrc/cpu/model_step_call.cc, in its order: addresses and numbers."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "block", "block_bytes", "pages", "num_layers", "num_pages", "page_bytes",
            "num_sequences", "table_width", "tables", "lengths", "starts",
            "num_tokens", "ids", "rotations", "positions",
            "num_rows", "rows", "logits", "routes",
        )
    ]  # fmt: skip


class PackedModel:
    """Weights of one version. `weights` in the order of csrc/cpu/model_weights.h, float32."""

    def __init__(
        self,
        shape: StepShape,
        weights: Sequence[paddle.Tensor],
        recipe: Recipe,
        *,
        eps: float,
        rope_theta: float,
    ) -> None:
        self._shape, self._theta = shape, rope_theta
        fields = [*astuple(shape), FORMATS.index(recipe.forward), recipe.power_of_two_scales]
        self._block = library.call(
            "pack_model", [contiguous(weight) for weight in weights], list(map(int, fields)), eps
        )
        self._rotations = self._make_rotations(FEWEST_POSITIONS)

    @property
    def num_bytes(self) -> int:
        """Of the packed weights."""
        return self._block.shape[0]

    def step(
        self,
        ids_T: np.ndarray,
        pages: KVPages,
        batch: PagedBatch,
        rows: np.ndarray,
        routes: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """(logits of `rows` [R, V], chosen experts int32 [T, L, K], or none of them)."""
        shape = self._shape
        ids_T, rows = np.ascontiguousarray(ids_T, np.int64), np.ascontiguousarray(rows, np.int64)
        rotations = self._rotations_for(batch)
        logits = np.empty((len(rows), shape.vocab_size), np.float32)
        moe_layers = shape.num_layers - shape.num_dense_layers
        chosen = np.empty((len(ids_T) if routes else 0, moe_layers, shape.top_k), np.int32)
        layers = np.array([layer.data_ptr() for layer in pages.layers], np.int64)
        wrong = _function()(
            _StepCall(
                self._block.data_ptr(), self._block.shape[0],
                address(layers), len(layers), pages.num_pages, pages.page_bytes,
                *batch.tables_BP.shape, address(batch.tables_BP), address(batch.lengths_B),
                address(batch.starts),
                len(ids_T), address(ids_T), address(rotations), len(rotations),
                len(rows), address(rows), address(logits), address(chosen) if routes else 0,
            )
        )  # fmt: skip
        if wrong is not None:
            raise InputError(f"inference step: {wrong.decode()}")
        return logits, chosen

    def _rotations_for(self, batch: PagedBatch) -> np.ndarray:
        # A table of all positions that occur: making those of one step costs more than the step.
        needed = int((batch.lengths_B + np.diff(batch.starts)).max(initial=0))
        if needed > len(self._rotations):
            self._rotations = self._make_rotations(max(needed, 2 * len(self._rotations)))
        return self._rotations

    def _make_rotations(self, positions: int) -> np.ndarray:
        return rope_rotations(np.arange(positions), self._shape.head_dim, self._theta)


@cache
def _function() -> Any:
    return library.c_function("model_step", [ctypes.POINTER(_StepCall)])
