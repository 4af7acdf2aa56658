"""Records of the experts that tokens went to (R3): types, wire format, packing, checks.

    routes [tokens - 1, moe layers, k], unsigned, the largest value where there is no record
      --> encode --> {"data": base64, "shape": [...], "dtype": "uint8", "bits": 5 or absent}
      --> decode --> check: whole, of this model, with missing rows filled and counted

Called by the engine, the HTTP server and its client, and trainers. Of `tokens` tokens, prompt and
generated, the last one was never run. Ids are those of the model's own experts. No Paddle.
"""

import base64
import binascii
import math
from typing import Any, NamedTuple, TypedDict

import numpy as np

from paddle_ernie.utils.errors import InputError

DTYPES = (np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32))


MAX_SIZE = 1 << 20
"""Of one axis: more than any model has tokens, and three of them fit an address."""


class EncodedRoutes(TypedDict, total=False):
    """As it stands in JSON; numbers are little-endian, rows one after the other."""

    data: str
    shape: list[int]
    dtype: str
    bits: int
    """If there: numbers of so many bits without gaps, lowest bit first, all ones for no record."""


class CheckedRoutes(NamedTuple):
    """Routes for every token that was run."""

    routes: np.ndarray
    """[tokens - 1, layers, k]."""
    missing: int
    """Tokens that some layer has no record of: they are routed anew there."""


def dtype_of(num_experts: int) -> np.dtype:
    """The smallest unsigned type whose largest value is not one of the ids."""
    for dtype in DTYPES:
        if 1 <= num_experts <= no_route(dtype):
            return dtype
    raise InputError(f"routes of {num_experts} experts; expected 1 to {no_route(DTYPES[-1])}")


def no_route(dtype: np.dtype) -> int:
    """The number that stands for "no record" in this type."""
    return int(np.iinfo(dtype).max)


def bits_of(num_experts: int) -> int:
    """Bits of a packed id; all ones is none of the ids."""
    dtype_of(num_experts)
    return num_experts.bit_length()


def bytes_per_token(layers: int, top_k: int, num_experts: int, *, packed: bool = False) -> float:
    """Of the array, or of its packed form; base64 takes 4/3 of it."""
    if packed:
        return layers * top_k * bits_of(num_experts) / 8
    return float(layers * top_k * dtype_of(num_experts).itemsize)


def encode(routes_TLK: np.ndarray, num_experts: int, *, packed: bool = False) -> EncodedRoutes:
    """For JSON. The array's type is the one of `num_experts`."""
    dtype = dtype_of(num_experts)
    assert routes_TLK.dtype == dtype, f"routes are {routes_TLK.dtype}; expected {dtype}"
    assert routes_TLK.ndim == 3, f"routes have shape {routes_TLK.shape}; expected three axes"
    bits = bits_of(num_experts)
    raw = pack(routes_TLK, bits) if packed else _little(dtype, routes_TLK).tobytes()
    encoded: EncodedRoutes = {
        "data": base64.b64encode(raw).decode("ascii"),
        "shape": list(routes_TLK.shape),
        "dtype": dtype.name,
    }
    if packed:
        encoded["bits"] = bits
    return encoded


def decode(encoded: dict[str, Any] | EncodedRoutes) -> np.ndarray:
    """The array; InputError if the record contradicts itself. `check` compares it with a model."""
    dtype, shape = _dtype(encoded.get("dtype")), _shape(encoded.get("shape"))
    bits = encoded.get("bits")
    if bits is not None and (type(bits) is not int or not 1 <= bits <= 8 * dtype.itemsize):
        raise InputError(f"routes: bits is {bits!r}; expected 1 to {8 * dtype.itemsize}")
    raw = _bytes(encoded.get("data"))
    count = math.prod(shape)
    expected = count * dtype.itemsize if bits is None else -(-count * bits // 8)
    if len(raw) != expected:
        raise InputError(
            f"routes: data has {len(raw)} bytes; expected {expected} for shape {list(shape)} of "
            f"{dtype.name if bits is None else f'{bits} bits'}: was the response cut off?"
        )
    if bits is not None:
        return unpack(raw, bits, dtype, shape)
    return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype).reshape(shape)


def pack(routes: np.ndarray, bits: int) -> bytes:
    """Numbers of `bits` bits in the array's order, lowest bit first; zeros fill the last byte."""
    values = np.where(routes == no_route(routes.dtype), (1 << bits) - 1, routes).astype(np.uint32)
    columns = values.reshape(-1, 1) >> np.arange(bits, dtype=np.uint32) & 1
    return np.packbits(columns.astype(np.uint8), bitorder="little").tobytes()


def unpack(raw: bytes, bits: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """The array that was packed."""
    count = math.prod(shape)
    flat = np.unpackbits(np.frombuffer(raw, np.uint8), count=count * bits, bitorder="little")
    powers = np.uint32(1) << np.arange(bits, dtype=np.uint32)
    values = flat.reshape(count, bits).astype(np.uint32) @ powers
    missing = values == (1 << bits) - 1
    return np.where(missing, no_route(dtype), values).astype(dtype).reshape(shape)


def check(
    routes: np.ndarray, *, tokens: int, layers: int, top_k: int, num_experts: int
) -> CheckedRoutes:
    """Routes of a sequence of `tokens` tokens; InputError if they are not of this model.

    A token's `top_k` experts in a layer are distinct, or it has no record there. Rows that are not
    there, at the end, count as missing.
    """
    dtype, rows = dtype_of(num_experts), max(tokens - 1, 0)
    if routes.dtype not in DTYPES or routes.ndim != 3 or routes.shape[1:] != (layers, top_k):
        raise InputError(
            f"routes: {routes.dtype} {list(routes.shape)}; expected [tokens, {layers}, {top_k}] of "
            f"{dtype}: {layers} MoE layers, {top_k} experts a token; was this model the one served?"
        )
    if len(routes) > rows:
        raise InputError(
            f"routes: {len(routes)} rows for {tokens} tokens; expected {rows} at most, for the "
            "last token is never run"
        )
    whole = np.full((rows, layers, top_k), no_route(dtype), dtype)
    absent = routes == no_route(routes.dtype)
    _check_ids(routes, absent, num_experts)
    whole[: len(routes)] = np.where(absent, no_route(dtype), routes)
    missing = np.count_nonzero((whole[..., 0] == no_route(dtype)).any(axis=1)) if layers else 0
    return CheckedRoutes(whole, int(missing))


def rollout_id(request_id: str) -> str:
    """Under which FastDeploy's stores keep a request's routes.

    chatcmpl-exp_epoch_15:7:2:1-d9f16c5c-65f6-4815-b44d-14e2c581907c_0 -> exp_epoch_15:7:2:1
    """
    kind, _, rest = request_id.partition("-")
    name = rest.rsplit("-", 5)[0]
    if kind != "chatcmpl" or not name:
        raise InputError(
            f"request id {request_id!r} has no rollout id; expected chatcmpl-<rollout id>-<uuid4>: "
            "send chat requests whose `user` is the rollout id, without a request_id"
        )
    return name


def _check_ids(routes: np.ndarray, absent: np.ndarray, num_experts: int) -> None:
    ranked = np.sort(routes, axis=2)
    repeated = (ranked[..., 1:] == ranked[..., :-1]).any(axis=2)
    wrong = (repeated | (routes >= num_experts).any(axis=2)) & ~absent.all(axis=2)
    for token, layer in np.argwhere(wrong)[:1]:
        raise InputError(
            f"routes: token {token}, MoE layer {layer}: experts {routes[token, layer].tolist()}; "
            f"expected different ones below {num_experts}, or only {no_route(routes.dtype)} for no "
            "record"
        )


def _little(dtype: np.dtype, routes: np.ndarray) -> np.ndarray:
    return routes.astype(dtype.newbyteorder("<"), copy=False)


def _dtype(name: Any) -> np.dtype:
    for dtype in DTYPES:
        if name == dtype.name:
            return dtype
    expected = ", ".join(dtype.name for dtype in DTYPES)
    raise InputError(f"routes: dtype is {name!r}; expected one of {expected}")


def _shape(shape: Any) -> tuple[int, int, int]:
    if (
        not isinstance(shape, list | tuple)
        or len(shape) != 3
        or not all(type(size) is int and 0 <= size <= MAX_SIZE for size in shape)
    ):
        raise InputError(f"routes: shape is {shape!r}; expected [tokens, MoE layers, experts]")
    return tuple(shape)


def _bytes(data: Any) -> bytes:
    if not isinstance(data, str):
        raise InputError(f"routes: data is a {type(data).__name__}; expected a base64 string")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(
            f"routes: data is not base64 ({error}); expected a base64 string"
        ) from None
