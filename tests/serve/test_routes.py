import base64
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.serve.routes import (
    bits_of,
    bytes_per_token,
    check,
    decode,
    dtype_of,
    encode,
    no_route,
    pack,
    rollout_id,
    unpack,
)
from paddle_ernie.utils.errors import InputError


def make(tokens: int, layers: int, top_k: int, experts: int, seed: int = 0) -> np.ndarray:
    """Distinct experts for each token and layer; a third of the records is missing."""
    rng = np.random.default_rng(seed)
    dtype = dtype_of(experts)
    ids = np.empty((tokens, layers, top_k), dtype)
    for at in np.ndindex(tokens, layers):
        ids[at] = rng.choice(experts, top_k, replace=False)
    ids[rng.random((tokens, layers)) < 0.3] = no_route(dtype)
    return ids


@st.composite
def records(draw) -> tuple[np.ndarray, int]:
    experts = draw(
        st.sampled_from([1, 2, 3, 4, 7, 8, 63, 64, 65, 127, 128, 255, 256, 65_535, 65_536])
    )
    top_k = draw(st.integers(1, min(experts, 5)))
    shape = draw(st.integers(0, 9)), draw(st.integers(0, 4)), top_k
    return make(*shape, experts, draw(st.integers(0, 99))), experts


# Types and sizes.


@pytest.mark.parametrize(
    ("experts", "dtype", "bits"),
    [
        (1, "uint8", 1),
        (2, "uint8", 2),
        (3, "uint8", 2),
        (4, "uint8", 3),
        (64, "uint8", 7),
        (127, "uint8", 7),
        (255, "uint8", 8),
        (256, "uint16", 9),
        (65_535, "uint16", 16),
        (65_536, "uint32", 17),
    ],
)
def test_types_and_bits_fit_the_ids_and_the_absence_of_one(experts, dtype, bits):
    assert dtype_of(experts) == np.dtype(dtype)
    assert no_route(dtype_of(experts)) > experts - 1
    assert bits_of(experts) == bits == math.ceil(math.log2(experts + 1))


@pytest.mark.parametrize("experts", [0, -1, 2**32])
def test_numbers_of_experts_without_a_type(experts):
    with pytest.raises(InputError, match=f"routes of {experts} experts; expected 1 to 4294967295"):
        bits_of(experts)


def test_bytes_per_token():
    """ERNIE 4.5 21B-A3B: 27 MoE layers, 6 of 64 experts."""
    assert bytes_per_token(27, 6, 64) == 162
    assert bytes_per_token(27, 6, 64, packed=True) == 141.75
    assert bytes_per_token(27, 6, 300) == 324


# Wire format.


@settings(max_examples=150, deadline=None)
@given(records(), st.booleans())
def test_round_trip_through_json(case, packed):
    routes, experts = case
    encoded = json.loads(json.dumps(encode(routes, experts, packed=packed)))
    found = decode(encoded)
    assert found.dtype == routes.dtype
    np.testing.assert_array_equal(found, routes)
    length = len(base64.b64decode(encoded["data"]))
    tokens, layers, top_k = routes.shape
    assert length == math.ceil(tokens * bytes_per_token(layers, top_k, experts, packed=packed))


def test_the_wire_format_by_hand():
    routes = np.array([[[0, 5]], [[255, 255]]], np.uint8)
    assert encode(routes, 6) == {"data": "AAX//w==", "shape": [2, 1, 2], "dtype": "uint8"}
    # 3 bits each, lowest first: 000 101 111 111 -> bytes 11101000, 00001111
    packed = encode(routes, 6, packed=True)
    assert base64.b64decode(packed["data"]) == bytes([0b11101000, 0b1111])
    assert packed["bits"] == 3
    wide = encode(np.array([[[258]]], np.uint16), 300)
    assert base64.b64decode(wide["data"]) == bytes([2, 1])


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 16), st.lists(st.integers(0, 2**16 - 1), max_size=40))
def test_packing_by_python_integers(bits, values):
    values = [value % (1 << bits) for value in values]
    dtype = np.dtype(np.uint16)
    shown = [no_route(dtype) if value == (1 << bits) - 1 else value for value in values]
    number = sum(value << (bits * i) for i, value in enumerate(values))
    expected = number.to_bytes(-(-bits * len(values) // 8), "little")
    assert pack(np.array(shown, dtype), bits) == expected
    np.testing.assert_array_equal(unpack(expected, bits, dtype, (len(values),)), shown)


def valid() -> dict:
    return dict(encode(make(4, 2, 2, 8), 8, packed=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int32"}, "dtype is 'int32'; expected one of uint8, uint16, uint32"),
        ({"dtype": None}, "dtype is None"),
        ({"dtype": ["uint8"]}, "dtype is"),
        ({"shape": [4, 2]}, r"shape is \[4, 2\]; expected \[tokens, MoE layers, experts\]"),
        ({"shape": [4, 2, -2]}, "shape is"),
        ({"shape": [4, 2, 2.0]}, "shape is"),
        ({"shape": [4, 2, True]}, "shape is"),
        ({"shape": "422"}, "shape is"),
        ({"shape": [4, 2, 10**30]}, "shape is"),
        ({"shape": [4, 2, 1 << 20]}, "data has 8 bytes; expected 4194304"),
        ({"bits": 0}, "bits is 0; expected 1 to 8"),
        ({"bits": 9}, "bits is 9; expected 1 to 8"),
        ({"bits": "4"}, "bits is '4'"),
        ({"bits": 3}, "data has 8 bytes; expected 6"),
        ({"bits": None}, r"data has 8 bytes; expected 16 for shape \[4, 2, 2\] of uint8: was the"),
        ({"data": "AAAA"}, "data has 3 bytes; expected 8"),
        ({"data": "not base64!"}, "data is not base64"),
        ({"data": "ünicode"}, "data is not base64"),
        ({"data": 5}, "data is a int; expected a base64 string"),
    ],
)
def test_records_that_contradict_themselves(change, message):
    with pytest.raises(InputError, match=message):
        decode({**valid(), **change})


@pytest.mark.parametrize("key", ["data", "shape", "dtype"])
def test_records_with_a_part_missing(key):
    record = valid()
    del record[key]
    with pytest.raises(InputError, match=f"routes: {key} is"):
        decode(record)


# Validity.

MODEL = {"layers": 2, "top_k": 2, "num_experts": 8}


def test_a_whole_record_stays_as_it_is():
    routes = np.array([[[0, 7], [3, 2]], [[1, 2], [4, 5]]], np.uint8)
    found = check(routes, tokens=3, **MODEL)
    np.testing.assert_array_equal(found.routes, routes)
    assert found.missing == 0


def test_missing_rows_are_filled_and_counted():
    routes = np.array([[[0, 7], [3, 2]], [[1, 2], [255, 255]]], np.uint8)
    found = check(routes, tokens=5, **MODEL)
    assert found.routes.shape == (4, 2, 2)
    np.testing.assert_array_equal(found.routes[:2], routes)
    assert (found.routes[2:] == 255).all()
    assert found.missing == 3


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 99))
def test_checked_routes_have_a_row_for_every_token_that_was_run(rows, more, seed):
    routes = make(rows, 2, 2, 8, seed)
    found = check(routes, tokens=rows + 1 + more, **MODEL)
    assert found.routes.shape == (rows + more, 2, 2)
    assert found.missing == more + (routes == 255).any(axis=(1, 2)).sum()


def test_a_wider_type_becomes_the_models():
    """FastDeploy counts shared experts too when it chooses the type."""
    routes = np.array([[[0, 7], [65_535, 65_535]]], np.uint16)
    found = check(routes, tokens=2, **MODEL)
    assert found.routes.dtype == np.uint8
    assert found.routes.tolist() == [[[0, 7], [255, 255]]]
    assert found.missing == 1


def test_a_sequence_of_one_token_has_no_routes():
    assert check(np.empty((0, 2, 2), np.uint8), tokens=1, **MODEL).routes.shape == (0, 2, 2)


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        (np.zeros((2, 3, 2), np.uint8), r"uint8 \[2, 3, 2\]; expected \[tokens, 2, 2\] of uint8"),
        (np.zeros((2, 2, 1), np.uint8), r"expected \[tokens, 2, 2\]"),
        (np.zeros((2, 2), np.uint8), r"expected \[tokens, 2, 2\]"),
        (np.zeros((2, 2, 2), np.int32), r"int32 \[2, 2, 2\]"),
        (make(4, 2, 2, 8), "4 rows for 4 tokens; expected 3 at most"),
        (np.full((1, 2, 2), [3, 3], np.uint8), r"token 0, MoE layer 0: experts \[3, 3\]; expected"),
        (np.full((1, 2, 2), [3, 8], np.uint8), "different ones below 8, or only 255"),
        (np.full((1, 2, 2), [3, 255], np.uint8), r"experts \[3, 255\]"),
    ],
)
def test_routes_of_another_model(routes, message):
    with pytest.raises(InputError, match=message):
        check(routes, tokens=4, **MODEL)


# Rollout ids.

UUID = "d9f16c5c-65f6-4815-b44d-14e2c581907c"


@pytest.mark.parametrize(
    ("request_id", "expected"),
    [
        (f"chatcmpl-exp_epoch_15:7:2:1-{UUID}_0", "exp_epoch_15:7:2:1"),
        (f"chatcmpl-exp_epoch_15:7:2:1-{UUID}", "exp_epoch_15:7:2:1"),
        (f"chatcmpl-with-dashes-in-it-{UUID}_3", "with-dashes-in-it"),
        (f"chatcmpl-{UUID}", "d9f16c5c"),  # as FastDeploy does: without a user, one group is left
        ("chatcmpl-alone", "alone"),
    ],
)
def test_rollout_ids_are_what_fastdeploy_makes_of_request_ids(request_id, expected):
    assert rollout_id(request_id) == expected


@pytest.mark.parametrize(
    "request_id", ["", f"cmpl-x-{UUID}", "chatcmpl", "chatcmpl-", f"chatcmpl--{UUID}"]
)
def test_requests_without_a_rollout_id(request_id):
    with pytest.raises(
        InputError, match="has no rollout id; expected chatcmpl-<rollout id>-<uuid4>"
    ):
        rollout_id(request_id)
