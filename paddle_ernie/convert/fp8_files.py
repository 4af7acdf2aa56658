"""Block-scaled FP8 in public checkpoints: which tensors, under which names, and their values.

    torch layout     X.weight        E4M3 [out, in], X.weight_scale_inv fp32 [out / 128, in / 128]
    -Paddle layout   X.quant_weight  E4M3 [in, out], X.weight_scale     fp32 [in / 128, out / 128]

Attention, MLP and expert matrices are quantised; embedding, head, router, norms and the projection
of multi-token prediction are not: the same split as in our FP8 recipe. Codes and scales are those
of ops.quantise on bf16-rounded values, which is what our server multiplies with; -0 is stored as 0.

Reading back gives code * scale in fp32, unrounded. Quantising that again returns the same codes and
scales: the largest value of a block has the code 448 and a bf16 value, so the scale comes back, and
bf16 rounding moves no other value as far as half a step of E4M3 (of a block whose largest value is
below 2^-117 the scale is subnormal, and a code may move). With power-of-two scales the same
values come back (where the largest code is 224, as twice the code and half the scale). A foreign
checkpoint may have scales of another rule: `changed` counts its matrices that would not come back.
"""

from collections.abc import Mapping

import numpy as np

from paddle_ernie.convert.hf_files import E4M3, FP32, Spec, TensorFiles
from paddle_ernie.ops.arrays import tensor, view
from paddle_ernie.ops.quantise import BLOCK, dequantise_blocks, quantise_blocks
from paddle_ernie.utils.errors import InputError

WEIGHT = ".weight"
TORCH_NAMES = (WEIGHT, ".weight_scale_inv")
NEGATIVE_ZERO = 0x80
PADDLE_NAMES = (".quant_weight", ".weight_scale")


def is_quantised(name: str) -> bool:
    """Whether the FP8 recipe covers a matrix, by its name in either layout."""
    return name.endswith("_proj.weight")


def fp8_specs(name: str, shape: tuple[int, ...], names: tuple[str, str]) -> tuple[Spec, Spec]:
    """Codes and scales of a matrix; `names` is TORCH_NAMES or PADDLE_NAMES."""
    stem = name.removesuffix(WEIGHT)
    rows, columns = shape
    blocks = (-(-rows // BLOCK), -(-columns // BLOCK))
    return Spec(stem + names[0], E4M3, shape), Spec(stem + names[1], FP32, blocks)


def encode(matrix: np.ndarray, *, power_of_two: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Codes (uint8) and scales of a matrix [R, C]."""
    own = np.array(
        matrix, np.float32, order="C"
    )  # a mapped file is read-only, Paddle wants to write
    codes, scales = map(view, quantise_blocks(tensor(own), power_of_two=power_of_two))
    codes[codes == NEGATIVE_ZERO] = 0  # whether a zero has a sign is a kernel's chance
    return codes, scales


def decode(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """fp32 values."""
    own = np.array(codes, order="C"), np.array(scales, np.float32, order="C")
    return view(dequantise_blocks(tensor(own[0]), tensor(own[1])))


class WeightValues(Mapping[str, np.ndarray]):
    """A checkpoint's tensors as fp32 under the names they have without quantisation."""

    def __init__(self, files: TensorFiles) -> None:
        self._files = files
        self._stored = {self._plain_name(name): name for name in files}
        """Name without quantisation -> the tensor that holds it."""
        self._scales = {
            name: scale
            for name, stored in self._stored.items()
            if (scale := self._scale_name(stored)) is not None
        }
        for scale in self._scales.values():
            self._stored.pop(self._plain_name(scale), None)

    def __getitem__(self, name: str) -> np.ndarray:
        stored = self._stored[name]
        spec = self._files.specs[stored]
        if name not in self._scales:
            if spec.dtype == E4M3:
                raise InputError(f"{self._files.path}: {stored} is FP8, but has no scales")
            return self._files.values_of(stored)
        return decode(self._files[stored], self.scales(name))

    def __iter__(self):
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def quantised(self) -> list[str]:
        """Names of the matrices stored in FP8."""
        return list(self._scales)

    def shape(self, name: str) -> tuple[int, ...]:
        """Without reading the tensor."""
        return self._files.specs[self._stored[name]].shape

    def scales(self, name: str) -> np.ndarray:
        """fp32 scales of a quantised matrix."""
        stored, scale = self._stored[name], self._scales[name]
        shape = self._files.specs[stored].shape
        expected = fp8_specs(name, shape, TORCH_NAMES)[1].shape
        scales = self._files.values_of(scale)
        if scales.shape != expected:
            raise InputError(
                f"{self._files.path}: {scale} has shape {list(scales.shape)}, expected "
                f"{list(expected)}: one scale for {BLOCK} x {BLOCK} values of {list(shape)}"
            )
        return scales

    def changed(self, *, power_of_two: bool) -> int:
        """How many quantised matrices would have other values if they were quantised again."""
        count = 0
        for name in self._scales:
            values = self[name]
            again = decode(*encode(values, power_of_two=power_of_two))
            count += not np.array_equal(values, again, equal_nan=True)
        return count

    def _plain_name(self, stored: str) -> str:
        if stored.endswith(PADDLE_NAMES[0]):
            return stored.removesuffix(PADDLE_NAMES[0]) + WEIGHT
        return stored

    def _scale_name(self, stored: str) -> str | None:
        if self._files.specs[stored].dtype != E4M3:
            return None
        for codes, scales in (TORCH_NAMES, PADDLE_NAMES):
            if (
                stored.endswith(codes)
                and (name := stored.removesuffix(codes) + scales) in self._files
            ):
                return name
        return None
