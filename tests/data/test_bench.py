"""The benchmark runs the real path; its figures are plausible."""

from pathlib import Path

import pytest

from paddle_ernie.config.data import SourceConfig
from paddle_ernie.data.bench import bench_data


def test_figures_are_consistent(tmp_path: Path) -> None:
    source = SourceConfig(format="python_stdlib", max_bytes=400_000)
    result = bench_data(tmp_path, source=source, vocab_size=600, batch_rows=4, max_seq_len=64)
    assert result.text_megabytes == pytest.approx(0.4, rel=0.2)
    assert 1 < result.bytes_per_token < 6
    assert result.vocab_size == 600
    assert 0 < result.warm_start_seconds < 2
    assert 0 < result.tokenizer_seconds < 30
    assert 0 < result.loader_milliseconds < 50
    assert result.one_core_mb_per_second > 0 < result.all_cores_mb_per_second
