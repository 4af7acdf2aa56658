"""VisualDLFile: the file that `visualdl --logdir` shows; written by Monitor, one per run folder.

    record --> one protobuf message per scalar, histogram, text --> length-prefixed frames
           --> ONE unbuffered write

VisualDL's page shows a single file per folder, the one whose name sorts last, and a server that is
open keeps a byte offset into it. So a run keeps one file name for life, and after a resume the
Monitor rebuilds the file from the JSONL records: the bytes up to the resumed step come out the
same, and curves go on without a gap or a repeat, also on a page that was already open.

VisualDL's message builders and framing are used; its `LogWriter` is not: it writes from a thread
with a 10 s delay, prints, and takes histograms only as raw values. Names of metrics may not hold
'%', which VisualDL uses for '/'. Not used, because broken in VisualDL 2.5.3: PR and ROC curves.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from visualdl.component import base_component
from visualdl.proto.record_pb2 import Record
from visualdl.writer.record_writer import RecordWriter

from paddle_ernie.monitor.records import MetricRecord, as_histogram

FILE_NAME = "vdlrecords.metrics.log"
"""VisualDL reads files whose name contains `vdlrecords`."""

LINE_END = " ↵ "

HParam = bool | int | float | str | None


class VisualDLFile:
    """Appends records to `<directory>/vdlrecords.metrics.log`; a record is readable on return."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = path.open("ab", buffering=0)

    def write(self, record: MetricRecord, time: float) -> None:
        """Append every scalar, histogram and text of `record`."""
        self._append(_messages(record, _milliseconds(time)))

    def hparams(self, params: Mapping[str, HParam], metrics: Sequence[str], time: float) -> None:
        """Append the hyper-parameters and the names of the scalars to show beside them."""
        # bool is an int to VisualDL, and True would read 1.
        values = {
            name: str(value) if isinstance(value, bool) else value for name, value in params.items()
        }
        message = base_component.hparam("run", values, list(metrics), _milliseconds(time))
        self._append([message])

    def close(self) -> None:
        """Close the file; further writes fail."""
        self._stream.close()

    def _append(self, messages: Iterable[Record]) -> None:
        frames = _Frames()
        writer = RecordWriter(frames)
        for message in messages:
            writer.write(message.SerializeToString())
        # One write call: a page that reads meanwhile sees whole frames only.
        written = self._stream.write(frames.data)
        if written != len(frames.data):
            raise OSError(
                f"only {written} of {len(frames.data)} bytes were written (is the disk full?)"
            )


class _Frames:
    """Collects what RecordWriter writes."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        self.data += data


def _messages(record: MetricRecord, time: int) -> Iterable[Record]:
    for name, value in record.scalars.items():
        yield base_component.scalar(name, value, record.step, time)
    for name, value in record.histograms.items():
        histogram = as_histogram(value)
        yield base_component.histogram(name, histogram.counts, histogram.edges, record.step, time)
    for name, text in record.texts.items():
        # Protobuf refuses lone surrogates.
        clean = text.encode("utf-8", errors="replace").decode("utf-8")
        # The page runs lines together: their ends are shown, or code could not be read.
        yield base_component.text(name, clean.replace("\n", LINE_END), record.step, time)


def _milliseconds(time: float) -> int:
    return round(time * 1000)
