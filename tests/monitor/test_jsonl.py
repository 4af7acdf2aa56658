import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.monitor.jsonl import decode_line, encode_line
from paddle_ernie.monitor.records import Histogram, MetricRecord

NAMES = st.text(st.sampled_from("abc/_0"), min_size=1).map("x/".__add__)
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
HISTOGRAMS = st.lists(st.integers(0, 2**40), min_size=1, max_size=8).map(np.array)
RECORDS = st.builds(
    MetricRecord,
    step=st.integers(0, 10**9),
    scalars=st.dictionaries(NAMES, FLOATS, max_size=4),
    histograms=st.dictionaries(NAMES, HISTOGRAMS, max_size=2),
    texts=st.dictionaries(NAMES, st.text(st.characters(exclude_categories=["Cs"])), max_size=2),
)


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


@given(RECORDS, st.floats(0, 4e9))
def test_round_trip(record, time):
    line = encode_line(record, time)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    decoded, decoded_time = decode_line(line)
    assert decoded.step == record.step
    assert decoded_time == round(time, 3)
    assert decoded.scalars.keys() == record.scalars.keys()
    assert all(same(decoded.scalars[name], value) for name, value in record.scalars.items())
    assert decoded.texts == record.texts
    for name, counts in record.histograms.items():
        assert decoded.histograms[name].counts.tolist() == counts.tolist()
        assert decoded.histograms[name].edges.tolist() == list(range(len(counts) + 1))
    # A resume rewrites lines: they must not drift.
    assert encode_line(decoded, decoded_time) == line


def test_line_is_strict_json_with_non_finite_numbers_as_strings():
    scalars = {"a/nan": math.nan, "a/inf": math.inf, "a/ninf": np.float32("-inf"), "a/x": 1.5}
    line = encode_line(MetricRecord(3, scalars), 1.0)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    assert json.loads(line, parse_constant=refuse) == {
        "step": 3,
        "time": 1.0,
        "a/nan": "NaN",
        "a/inf": "Infinity",
        "a/ninf": "-Infinity",
        "a/x": 1.5,
    }


def test_numpy_and_python_numbers():
    values = {"a/f32": np.float32(0.5), "a/i64": np.int64(7), "a/bool": True, "a/0d": np.array(2.0)}
    decoded, _ = decode_line(encode_line(MetricRecord(1, values), 0.0))
    assert decoded.scalars == {"a/f32": 0.5, "a/i64": 7.0, "a/bool": 1.0, "a/0d": 2.0}


def test_value_histogram_keeps_its_edges():
    histogram = Histogram.of_values(np.linspace(-1, 1, 50), bins=5)
    decoded, _ = decode_line(encode_line(MetricRecord(1, histograms={"h/x": histogram}), 0.0))
    assert decoded.histograms["h/x"].edges.tolist() == histogram.edges.tolist()


def test_half_a_surrogate_pair_is_written_as_a_question_mark():
    decoded, _ = decode_line(encode_line(MetricRecord(1, texts={"s/0": "ok \ud83d"}), 0.0))
    assert decoded.texts["s/0"] == "ok ?"


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"step": "x"}', b'{"step": 1, "a": {}}'])
def test_other_lines_are_refused(line):
    with pytest.raises((ValueError, TypeError)):
        decode_line(line)
