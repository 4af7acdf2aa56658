import numpy as np
import pytest

from paddle_ernie.monitor.reader import read_jsonl
from paddle_ernie.monitor.records import MetricRecord
from paddle_ernie.monitor.writer import Monitor
from paddle_ernie.utils.errors import InputError


def test_series_of_names_that_are_not_in_every_record(tmp_path):
    with Monitor(tmp_path / "m.jsonl", None) as monitor:
        monitor.write(MetricRecord(10, {"loss/train": 3.0}))
        monitor.write(MetricRecord(20, {"loss/train": float("nan"), "eval/full/bpb": 2.5}))
        monitor.write(MetricRecord(20, {"eval/small/bpb": 2.75}, {"h/x": np.arange(3)}))
    metrics = read_jsonl(tmp_path / "m.jsonl")
    assert metrics.scalars["loss/train"].steps.tolist() == [10, 20]
    assert np.isnan(metrics.scalars["loss/train"].last)
    assert metrics.scalars["eval/full/bpb"].steps.tolist() == [20]
    assert metrics.scalars["eval/small/bpb"].last == 2.75
    assert metrics.histograms["h/x"][0][0] == 20


def test_line_still_being_written_is_left_out(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1, "a/b": 1.0}\n{"step": 2, "a/b": 2')
    assert read_jsonl(path).scalars["a/b"].steps.tolist() == [1]


def test_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"m\.jsonl: no such metrics file"):
        read_jsonl(tmp_path / "m.jsonl")
