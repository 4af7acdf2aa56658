"""Draws the next token of every row of logits, and scores it. Called by the server's sampler.

    logits [R, V] --> the best `top_k`, of these the ones of `min_p`, of these the fewest best that
                      hold `top_p` --> one token a row, drawn by Philox(seed, position)

A row's token depends on its logits and parameters alone: not on other rows, threads, instruction
set, or whether a compiler was there. To that end probabilities are whole numbers,

    weight = round(2^30 exp((logit - peak) / temperature))       exp from products and sums only

whose sums are exact in any order. A token below 2^-31 of the likeliest one is never drawn. Of equal
logits the lower id is the better one. Log-probabilities are those of `ops.token_logprobs`, over the
whole row, whatever was drawn from.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import tensor, view
from paddle_ernie.ops.token_logprobs import NO_TARGET, logprobs_of_logits, plain_rows

NO_TOKEN = -1
"""The token of a row in which none can be chosen: a NaN or +inf among the logits, or all -inf."""
WEIGHT_BITS = 30
"""The likeliest token weighs 2^30: a million of them add up to less than 2^53, exact in float64."""
LOWEST = np.float32(-30.0)  # exp(-30) * 2^30 rounds to 0
_POLYNOMIAL = (1.98756915e-4, 1.39819994e-3, 8.33345193e-3, 4.16657962e-2, 1.66666655e-1,
               5.00000012e-1, 1.0, 1.0)  # fmt: skip
_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF


class RowParams(NamedTuple):
    """How one row is drawn from."""

    temperature: float
    """0: the likeliest token, and nothing below counts but `logprob_temperature`."""
    top_p: float
    min_p: float
    logprob_temperature: float
    """Of the log-probability that is returned; 0: none is computed."""
    top_k: int
    """0: all."""
    seed: int
    """The lower 64 bits count."""
    position: int
    """Which draw of the seed's this is."""


def sample_rows(
    logits_RV: np.ndarray, rows: Sequence[RowParams], num_ids: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(int64 ids [R], NO_TOKEN where there is none; float32 log-probabilities [R], else 0).

    Only ids below `num_ids` are drawn; log-probabilities are over whole rows.
    """
    num_ids = num_ids or logits_RV.shape[1]
    if not library.loaded():
        return _sample_plain(logits_RV, rows, num_ids)
    logits_RV = np.ascontiguousarray(logits_RV, np.float32)
    R, V = logits_RV.shape
    assert len(rows) == R, f"{len(rows)} parameters for {R} rows"
    assert 0 < num_ids <= V, f"num_ids is {num_ids}; expected 1 to {V}"
    floats_R4 = np.array([row[:4] for row in rows], np.float32)
    ints_R3 = np.array([(row.top_k, _int64(row.seed), row.position) for row in rows], np.int64)
    ids, logprobs = np.empty(R, np.int64), np.empty(R, np.float32)
    addresses = map(library.address, (floats_R4, ints_R3, ids, logprobs))
    wrong = _sample_function()(library.address(logits_RV), R, V, num_ids, *addresses)
    if wrong is not None:
        raise RuntimeError(f"sampling: {wrong.decode()}")
    return ids, logprobs


@cache
def _sample_function() -> Any:
    kinds = [ctypes.c_void_p, *[ctypes.c_int64] * 3, *[ctypes.c_void_p] * 4]
    return library.c_function("sample", kinds)


def row_logprobs(
    logits_RV: np.ndarray, ids_R: np.ndarray, temperatures_R: np.ndarray
) -> np.ndarray:
    """`logprobs_of_logits` between arrays; 0 where the id is NO_TOKEN."""
    labels_R = np.where(ids_R == NO_TOKEN, NO_TARGET, ids_R)
    logits = tensor(np.ascontiguousarray(logits_RV, np.float32))
    return view(logprobs_of_logits(logits, labels_R, temperatures_R)[0])


def top_logprobs(
    logits_RV: np.ndarray, temperatures_R: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The `count` likeliest ids of every row, best first, and their log-probabilities; [R, count].

    `count` is at most V. A row with NaN or infinity as its peak has ids 0, 1, ... and NaN.
    """
    logits_RV = np.ascontiguousarray(logits_RV, np.float32)
    temperatures_R = np.ascontiguousarray(temperatures_R, np.float32)
    if not library.loaded():
        return _top_plain(logits_RV, temperatures_R, count)
    ids, logprobs = library.call("top_logprobs", tensor(logits_RV), tensor(temperatures_R), count)
    return view(ids), view(logprobs)


def nucleus(logits_RV: np.ndarray, temperatures_R: np.ndarray, top_ps_R: np.ndarray) -> np.ndarray:
    """A copy with -inf outside the fewest best tokens of each row that hold `top_p`."""
    arrays = logits_RV, temperatures_R, top_ps_R
    arrays = [np.ascontiguousarray(array, np.float32) for array in arrays]
    if not library.loaded():
        return _nucleus_plain(*arrays)
    return view(library.call("nucleus", *map(tensor, arrays)))


def random_bits(seed: int, position: int) -> int:
    """64 bits: the first two words of Philox4x32-10 (Salmon et al. 2011) with the seed as key."""
    key = [seed & _WORD, seed >> 32 & _WORD]
    words = [position & _WORD, position >> 32 & _WORD, 0, 0]
    for _ in range(10):
        first, second = (m * w for m, w in zip(_PHILOX_MULTIPLIERS, words[::2], strict=True))
        words = [
            second >> 32 ^ words[1] ^ key[0], second & _WORD,
            first >> 32 ^ words[3] ^ key[1], first & _WORD,
        ]  # fmt: skip
        key = [(k + w) & _WORD for k, w in zip(key, _PHILOX_WEYL, strict=True)]
    return words[0] | words[1] << 32


def weights_of(logits_V: np.ndarray, temperature: float) -> np.ndarray:
    """int64 weights; every operation rounds once, in float32, as in csrc/cpu/sample_kernels.inc."""
    f = np.float32
    with np.errstate(over="ignore"):
        scale = min(f(1) / f(temperature), np.finfo(f).max)
        x = np.maximum((logits_V - logits_V.max()) * scale, LOWEST)
    n = (x * f(1.44269504) + f(12582912)) - f(12582912)  # 1.5 * 2^23: rounds to a whole number
    r = (x - n * f(0.693145752)) - n * f(1.42860677e-6)
    p = np.full_like(r, f(_POLYNOMIAL[0]))
    for coefficient in _POLYNOMIAL[1:]:
        p = p * r + f(coefficient)
    power = np.ldexp(f(1), n.astype(np.int32) + WEIGHT_BITS)
    return (p * power + f(0.5)).astype(np.int64)


def _sample_plain(
    logits_RV: np.ndarray, rows: Sequence[RowParams], num_ids: int
) -> tuple[np.ndarray, np.ndarray]:
    ids, logprobs = np.empty(len(rows), np.int64), np.zeros(len(rows), np.float32)
    for r, row in enumerate(rows):
        ids[r] = _draw(logits_RV[r, :num_ids], row)
    scored = [r for r, row in enumerate(rows) if row.logprob_temperature]
    if scored:
        temperatures = np.array([rows[r].logprob_temperature for r in scored], np.float32)
        logprobs[scored] = row_logprobs(logits_RV[scored], ids[scored], temperatures)
    return ids, logprobs


def _top_plain(
    logits_RV: np.ndarray, temperatures_R: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    ids_RN = np.argsort(-logits_RV, axis=1, kind="stable")[:, :count]
    invalid = ~np.isfinite(logits_RV.max(axis=1))
    ids_RN[invalid] = np.arange(count)
    log_p = logits_RV.copy()
    with np.errstate(invalid="ignore"):
        plain_rows(log_p, np.full(len(log_p), NO_TARGET), temperatures_R)
    log_p[invalid] = np.nan
    return ids_RN, np.take_along_axis(log_p, ids_RN, axis=1)


def _nucleus_plain(
    logits_RV: np.ndarray, temperatures_R: np.ndarray, top_ps_R: np.ndarray
) -> np.ndarray:
    masked = np.full_like(logits_RV, -np.inf)
    for r in np.flatnonzero(np.isfinite(logits_RV.max(axis=1))):
        row = RowParams(temperatures_R[r], top_ps_R[r], 0.0, 0.0, 0, 0, 0)
        kept = _kept(logits_RV[r], row)[0]
        masked[r, kept] = logits_RV[r, kept]
    return masked


def _draw(logits_V: np.ndarray, row: RowParams) -> int:
    peak = logits_V.max()  # NaN if there is one
    if not np.isfinite(peak):
        return NO_TOKEN
    if row.temperature == 0:
        return int(logits_V.argmax())
    ids, weights = _kept(logits_V, row)
    cumulative = np.cumsum(weights)
    target = random_bits(row.seed, row.position) * int(cumulative[-1]) >> 64
    return int(ids[np.searchsorted(cumulative, target, side="right")])


def _kept(logits_V: np.ndarray, row: RowParams) -> tuple[np.ndarray, np.ndarray]:
    """(ids, weights) of the tokens to draw from, by ascending id."""
    weights_V = weights_of(logits_V, row.temperature)
    order = np.argsort(-logits_V, kind="stable")[: row.top_k or None]
    order = order[weights_V[order] >= float(np.float32(row.min_p)) * (1 << WEIGHT_BITS)]
    top_p = float(np.float32(row.top_p))
    if top_p < 1:
        cumulative = np.cumsum(weights_V[order])
        order = order[: np.searchsorted(cumulative, np.ceil(top_p * cumulative[-1])) + 1]
    ids = np.sort(order)
    return ids, weights_V[ids]


def _int64(seed: int) -> int:
    """The integer whose two's complement has the seed's lower 64 bits."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
