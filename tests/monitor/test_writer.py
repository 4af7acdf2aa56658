import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from visualdl.proto.record_pb2 import Record
from visualdl.reader.reader import LogReader
from visualdl.server.lib import get_histogram, get_hparam_list, get_scalar

from paddle_ernie.monitor.reader import read_jsonl
from paddle_ernie.monitor.records import MetricRecord
from paddle_ernie.monitor.visualdl_file import FILE_NAME
from paddle_ernie.monitor.writer import Monitor
from paddle_ernie.utils.errors import InputError, TrainingError

HPARAMS = {"lr": 1e-3, "layers": 6, "tied": True, "schedule": "wsd", "none": None}


@pytest.fixture
def monitor(tmp_path):
    with Monitor(tmp_path / "metrics.jsonl", tmp_path / "visualdl") as monitor:
        yield monitor


def record(step: int) -> MetricRecord:
    return MetricRecord(
        step,
        {"loss/train": 10.0 / step, "train/lr": 1e-3},
        {"moe/layer_1/load": np.array([step, 2 * step, 3 * step])},
        {"samples/0": f"text of\nstep {step}"},
    )


def visualdl_messages(path: Path) -> dict[str, list]:
    """Messages by tag, parsed from the frames without VisualDL's reader."""
    data, messages = path.read_bytes(), defaultdict(list)
    while data:
        length = int.from_bytes(data[:8], "little")
        assert len(data) >= 8 + length, "torn frame"
        value = Record.FromString(data[8 : 8 + length]).values[0]
        messages[value.tag].append(value)
        data = data[8 + length :]
    return dict(messages)


def test_one_record_reaches_both_sinks(monitor, tmp_path):
    monitor.hparams(HPARAMS, ["loss/train"])
    for step in (1, 2):
        monitor.write(record(step), time=1000.0 + step)
    # Before close(): both files are complete after each write.
    metrics = read_jsonl(tmp_path / "metrics.jsonl")
    assert metrics.scalars["loss/train"].steps.tolist() == [1, 2]
    assert metrics.scalars["loss/train"].values.tolist() == [10.0, 5.0]
    assert metrics.histograms["moe/layer_1/load"][1][1].counts.tolist() == [2, 4, 6]
    assert metrics.texts["samples/0"] == [(1, "text of\nstep 1"), (2, "text of\nstep 2")]
    shown = visualdl_messages(tmp_path / "visualdl" / FILE_NAME)
    assert [(m.id, m.value, m.timestamp) for m in shown["loss/train"]] == [
        (1, 10.0, 1_001_000),
        (2, 5.0, 1_002_000),
    ]
    assert list(shown["moe/layer_1/load"][1].histogram.hist) == [2, 4, 6]
    assert list(shown["moe/layer_1/load"][1].histogram.bin_edges) == [0, 1, 2, 3]
    assert shown["samples/0"][0].text.encoded_text_string == "text of ↵ step 1"
    hparams = {info.name: info for info in shown["hparam"][0].hparam.hparamInfos}
    assert hparams["tied"].string_value == "True"
    assert hparams["lr"].float_value == pytest.approx(1e-3)
    assert "none" not in hparams


def test_resume_rebuilds_the_same_visualdl_bytes(tmp_path):
    paths = [(tmp_path / name / "metrics.jsonl", tmp_path / name / "vdl") for name in ("a", "b")]
    with Monitor(*paths[0]) as whole:
        for step in range(1, 9):
            whole.write(record(step), time=float(step))
    for steps in (range(1, 7), range(5, 9)):
        with Monitor(*paths[1]) as resumed:
            resumed.truncate_after(steps[0] - 1)
            for step in steps:
                resumed.write(record(step), time=float(step))
    for one, other in zip(paths[0], paths[1], strict=True):
        one, other = (p / FILE_NAME if p.name == "vdl" else p for p in (one, other))
        assert one.read_bytes() == other.read_bytes()


def test_page_that_was_open_during_a_resume_shows_one_continuous_curve(tmp_path):
    jsonl, directory = tmp_path / "metrics.jsonl", tmp_path / "vdl"
    with Monitor(jsonl, directory) as monitor:
        for step in (1, 2, 3):
            monitor.write(record(step))
    reader = LogReader([str(tmp_path)])  # what the server keeps while it runs
    run = str(directory)
    assert [point[1] for point in get_scalar(reader, run, "loss/train")] == [1, 2, 3]
    with Monitor(jsonl, directory) as monitor:
        monitor.truncate_after(3)
        monitor.write(record(4))
        assert [point[1] for point in get_scalar(reader, run, "loss/train")] == [1, 2, 3, 4]
        histograms = get_histogram(reader, run, "moe/layer_1/load")
        assert histograms[-1][2] == [[0, 1, 4], [1, 2, 8], [2, 3, 12]]


def test_hyper_parameters_stand_beside_the_last_value_of_their_metrics(monitor, tmp_path):
    monitor.hparams(HPARAMS, ["loss/train"])
    monitor.write(record(1))
    monitor.write(record(4))
    (entry,) = get_hparam_list(LogReader([str(tmp_path)]))
    assert entry["metrics"] == {"loss/train": 2.5}
    assert entry["hparams"]["layers"] == 6


def test_truncate_after(monitor, tmp_path):
    for step in (10, 20, 20, 30):
        monitor.write(record(step))
    monitor.truncate_after(20)
    assert read_jsonl(tmp_path / "metrics.jsonl").scalars["train/lr"].steps.tolist() == [10, 20, 20]
    monitor.write(record(30))
    shown = visualdl_messages(tmp_path / "visualdl" / FILE_NAME)
    assert [m.id for m in shown["loss/train"]] == [10, 20, 20, 30]
    monitor.truncate_after(-1)
    monitor.write(record(1))
    assert read_jsonl(tmp_path / "metrics.jsonl").scalars["train/lr"].steps.tolist() == [1]


@pytest.mark.parametrize("keep", range(1, 60, 7))
def test_torn_last_line_is_dropped_at_reopen(tmp_path, keep):
    path = tmp_path / "metrics.jsonl"
    with Monitor(path, None) as monitor:
        monitor.write(record(1))
        monitor.write(record(2))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    path.write_bytes(whole[: first + keep])
    assert read_jsonl(path).scalars["train/lr"].steps.tolist() == [1]
    with Monitor(path, tmp_path / "vdl") as monitor:
        monitor.write(record(2))
    assert read_jsonl(path).scalars["train/lr"].steps.tolist() == [1, 2]
    assert [m.id for m in visualdl_messages(tmp_path / "vdl" / FILE_NAME)["train/lr"]] == [1, 2]


def test_torn_line_longer_than_one_chunk_and_a_file_of_one_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "time": 0.0}\n{"step": 2, "texts": "' + b"x" * 200_000)
    with Monitor(path, None) as monitor:
        monitor.write(MetricRecord(2))
    assert path.read_bytes().count(b"\n") == 2
    path.write_bytes(b'{"step": 1')
    with Monitor(path, None) as monitor:
        monitor.write(MetricRecord(5, {"a/b": 1.0}), time=0.0)
    assert path.read_bytes() == b'{"step": 5, "time": 0.0, "a/b": 1.0}\n'


def test_kill_at_any_moment_loses_nothing_that_was_written(tmp_path):
    code = f"""
        from pathlib import Path
        from paddle_ernie.monitor.records import MetricRecord
        from paddle_ernie.monitor.writer import Monitor
        folder = Path({str(tmp_path)!r})
        monitor = Monitor(folder / "metrics.jsonl", folder / "vdl")
        for step in range(1, 10**9):
            monitor.write(MetricRecord(step, {{"loss/train": 1.0}}, texts={{"s/0": "x" * 9000}}))
            print(step, flush=True)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    while int(child.stdout.readline()) < 20:
        pass
    time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    acknowledged = int(child.stdout.read().split("\n")[-2])
    child.wait()
    with Monitor(tmp_path / "metrics.jsonl", tmp_path / "vdl") as monitor:
        monitor.write(MetricRecord(10**9, {"loss/train": 1.0}))
    steps = read_jsonl(tmp_path / "metrics.jsonl").scalars["loss/train"].steps.tolist()
    assert acknowledged - 1 <= len(steps) - 1 <= acknowledged + 1
    assert steps[:-1] == list(range(1, len(steps)))
    shown = visualdl_messages(tmp_path / "vdl" / FILE_NAME)
    assert [m.id for m in shown["loss/train"]] == steps


def test_nothing_is_created_before_the_first_write(tmp_path):
    with Monitor(tmp_path / "run" / "metrics.jsonl", tmp_path / "run" / "vdl") as monitor:
        monitor.hparams(HPARAMS, [])
        monitor.truncate_after(0)
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_made_is_an_error_with_the_path(tmp_path):
    (tmp_path / "file").write_text("")
    monitor = Monitor(tmp_path / "file" / "metrics.jsonl", None)
    with pytest.raises(TrainingError, match=r"file/metrics\.jsonl: cannot write .* step 1"):
        monitor.write(record(1))


def test_full_disk_is_an_error_and_leaves_whole_lines(tmp_path):
    code = f"""
        import resource
        from pathlib import Path
        from paddle_ernie.monitor.records import MetricRecord
        from paddle_ernie.monitor.writer import Monitor
        from paddle_ernie.utils.errors import TrainingError
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        monitor = Monitor(Path({str(tmp_path)!r}) / "metrics.jsonl", None)
        try:
            for step in range(1, 1000):
                monitor.write(MetricRecord(step, {{"loss/train": 1.0}}))
        except TrainingError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    message = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(r"metrics\.jsonl: cannot write the metrics of step \d+: .* free disk", message)
    failed = int(re.search(r"step (\d+)", message)[1])
    with Monitor(tmp_path / "metrics.jsonl", None) as monitor:
        monitor.write(MetricRecord(failed, {"loss/train": 1.0}))
    steps = read_jsonl(tmp_path / "metrics.jsonl").scalars["loss/train"].steps.tolist()
    assert steps == list(range(1, failed + 1))


def test_damaged_line_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\nnot json\n{"step": 2}\n')
    with pytest.raises(InputError, match="line 2"):
        read_jsonl(path)
    with pytest.raises(InputError, match="line 2"):
        Monitor(path, None).truncate_after(1)
