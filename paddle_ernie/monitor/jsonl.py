"""MetricRecord <-> one line of `metrics.jsonl`; used by the Monitor and the reader.

A line is one JSON object in UTF-8, ended by a newline:

    {"step": 120, "time": 1722470400.125, "loss/train": 3.21, "train/lr": 0.001,
     "histograms": {"moe/layer_1/load": {"counts": [510, 498], "edges": [0, 1, 2]}},
     "texts": {"samples/0": "def main():"}}

Scalars stand at the top level; `histograms` and `texts` are there only when not empty. The JSON is
strict: numbers that JSON lacks are the strings "NaN", "Infinity" and "-Infinity", which
Python's `float()` and `decode_line` turn back into numbers.
"""

import json
import math
from typing import Any

import numpy as np

from paddle_ernie.monitor.records import RESERVED_NAMES, Histogram, MetricRecord, as_histogram

JsonNumber = float | str


def encode_line(record: MetricRecord, time: float) -> bytes:
    """`record` as one line; `time` is seconds since 1970, kept to the millisecond."""
    line: dict[str, Any] = {"step": int(record.step), "time": round(time, 3)}
    line.update({name: encode_number(value) for name, value in record.scalars.items()})
    if record.histograms:
        line["histograms"] = {
            name: _encode_histogram(as_histogram(value))
            for name, value in record.histograms.items()
        }
    if record.texts:
        line["texts"] = dict(record.texts)
    text = json.dumps(line, ensure_ascii=False, allow_nan=False)
    # A text sample may end in half a surrogate pair, which UTF-8 cannot hold.
    return text.encode("utf-8", errors="replace") + b"\n"


def decode_line(line: bytes) -> tuple[MetricRecord, float]:
    """The record and time of one line; ValueError when it is not such a line."""
    value = json.loads(line)
    if not isinstance(value, dict) or not isinstance(value.get("step"), int):
        raise ValueError('expected a JSON object with an integer "step"')
    record = MetricRecord(
        step=value["step"],
        scalars={
            name: float(number) for name, number in value.items() if name not in RESERVED_NAMES
        },
        histograms={
            name: Histogram(
                np.asarray(entry["counts"], dtype=np.float64),
                np.asarray(entry["edges"], dtype=np.float64),
            )
            for name, entry in value.get("histograms", {}).items()
        },
        texts=value.get("texts", {}),
    )
    return record, float(value.get("time", 0.0))


def encode_number(value: float) -> JsonNumber:
    """`value` (any number, numpy or Python) as strict JSON; non-finite numbers become strings."""
    number = float(value)
    if math.isfinite(number):
        return number
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _encode_histogram(histogram: Histogram) -> dict[str, list[JsonNumber]]:
    return {"counts": _compact(histogram.counts), "edges": _compact(histogram.edges)}


def _compact(values: np.ndarray) -> list[JsonNumber]:
    """Whole numbers without their '.0': expert loads are integers, and lines stay short."""
    return [int(x) if float(x).is_integer() else encode_number(x) for x in values]
