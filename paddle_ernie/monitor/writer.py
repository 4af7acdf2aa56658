"""Monitor: writes each MetricRecord to `metrics.jsonl` and to VisualDL; used by every training run.

    write(record) --+--> metrics.jsonl            one line, on disk before write() returns
                    '--> vdlrecords.metrics.log   the same record for `visualdl --logdir`

The JSONL file is the truth. It survives kill -9 at any moment: a torn last line is dropped when the
file is opened again. The VisualDL file is rebuilt from it at each start (`visualdl_file.py` says
why), so both always show the same run. Files are opened at the first write: a run that fails
before it logs leaves nothing behind.
"""

import time as clock
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from typing_extensions import Self

from paddle_ernie.monitor.jsonl import encode_line
from paddle_ernie.monitor.reader import read_records
from paddle_ernie.monitor.records import MetricRecord
from paddle_ernie.utils.errors import TrainingError
from paddle_ernie.utils.files import write_atomic

if TYPE_CHECKING:
    from paddle_ernie.monitor.visualdl_file import HParam, VisualDLFile

TAIL_CHUNK_BYTES = 1 << 16  # a torn line is looked for from the end in pieces of this size


class Monitor:
    """Both sinks of a run. Not shared between processes: rank 0 writes."""

    def __init__(self, jsonl_path: Path, visualdl_dir: Path | None) -> None:
        self._jsonl_path = jsonl_path
        self._visualdl_dir = visualdl_dir
        self._jsonl: BinaryIO | None = None
        self._visualdl: VisualDLFile | None = None
        self._hparams: tuple[dict[str, HParam], list[str]] | None = None

    def write(self, record: MetricRecord, *, time: float | None = None) -> None:
        """Append `record`, stamped with `time` (seconds since 1970, default now), to both sinks."""
        stamp = round(clock.time() if time is None else time, 3)
        with _storage_errors(self._jsonl_path, f"write the metrics of step {record.step}"):
            jsonl = self._open()
            _write_whole(jsonl, encode_line(record, stamp))
            if self._visualdl is not None:
                self._visualdl.write(record, stamp)

    def hparams(self, params: Mapping[str, "HParam"], metrics: Sequence[str]) -> None:
        """Show `params` in VisualDL beside the last value of each scalar named in `metrics`.

        Call it once at start, before the first write; it is kept for a rebuild of the file.
        """
        self._hparams = (dict(params), list(metrics))
        if self._visualdl is not None:
            with _storage_errors(self._jsonl_path, "write the hyper-parameters"):
                self._visualdl.hparams(*self._hparams, clock.time())

    def truncate_after(self, step: int) -> None:
        """Forget records past `step` (a resume from that step's checkpoint); -1 forgets all."""
        self.close()
        if not self._jsonl_path.exists():
            return
        with _storage_errors(self._jsonl_path, f"drop the metrics after step {step}"):
            lines = [
                encode_line(record, stamp)
                for record, stamp in read_records(self._jsonl_path)
                if record.step <= step
            ]
            write_atomic(self._jsonl_path, lambda temporary: _write_lines(temporary, lines))

    def close(self) -> None:
        """Close both files; a later write opens them again."""
        for sink in (self._jsonl, self._visualdl):
            if sink is not None:
                sink.close()
        self._jsonl = self._visualdl = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open(self) -> BinaryIO:
        if self._jsonl is None:
            self._jsonl_path.parent.mkdir(parents=True, exist_ok=True)
            if self._jsonl_path.exists():
                _drop_torn_line(self._jsonl_path)
            if self._visualdl_dir is not None:
                self._visualdl = self._rebuild_visualdl(self._visualdl_dir)
            self._jsonl = self._jsonl_path.open("ab", buffering=0)
        return self._jsonl

    def _rebuild_visualdl(self, directory: Path) -> "VisualDLFile":
        # Imported here: the import takes 0.15 s, and runs without VisualDL need none of it.
        from paddle_ernie.monitor.visualdl_file import FILE_NAME, VisualDLFile

        def replay(path: Path) -> None:
            file = VisualDLFile(path)
            if self._hparams is not None:
                file.hparams(*self._hparams, clock.time())
            if self._jsonl_path.exists():
                for record, stamp in read_records(self._jsonl_path):
                    file.write(record, stamp)
            file.close()

        write_atomic(directory / FILE_NAME, replay)
        return VisualDLFile(directory / FILE_NAME)


def _drop_torn_line(path: Path) -> None:
    """Cut what follows the last newline: the line being written when the run was killed."""
    with path.open("r+b") as stream:
        end = stream.seek(0, 2)
        while end > 0:
            start = max(0, end - TAIL_CHUNK_BYTES)
            stream.seek(start)
            newline = stream.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        stream.truncate(end)


def _write_lines(path: Path, lines: list[bytes]) -> None:
    with path.open("wb") as stream:
        stream.writelines(lines)


def _write_whole(stream: BinaryIO, data: bytes) -> None:
    written = stream.write(data)
    if written != len(data):
        raise OSError(f"only {written} of {len(data)} bytes were written (is the disk full?)")


@contextmanager
def _storage_errors(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainingError(
            f"{path}: cannot {what}: {error}; free disk space or make the folder writable, "
            "then resume"
        ) from error
