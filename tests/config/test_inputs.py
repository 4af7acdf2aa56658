"""Named text and models must be there: a run is refused with the line, a dry run only says so."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paddle_ernie.config.loader import load_config
from paddle_ernie.utils.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
DEBUG = ROOT / "configs" / "pretrain" / "debug.yaml"
WriteYaml = Callable[..., Path]


def faults(*overrides: str, path: Path = DEBUG) -> list[str]:
    """Lines of the report, without its heading."""
    load_config(path, overrides)  # without the check nothing is wrong
    try:
        load_config(path, overrides, inputs_exist=True)
    except ConfigError as error:
        return str(error).splitlines()[1:]
    return []


def test_files_of_the_project_that_need_nothing_pass() -> None:
    assert faults() == []
    assert faults(path=ROOT / "configs" / "quickstart.yaml") == []


def test_a_missing_source_has_its_line_and_the_nearest_name(
    write_yaml: WriteYaml, tmp_path: Path
) -> None:
    (tmp_path / "corpus.txt").write_text("text")
    text = DEBUG.read_text().replace("format: python_stdlib", f"path: {tmp_path}/corpsu.txt")
    path = write_yaml(text)
    line = text[: text.index("corpsu.txt")].count("\n") + 1
    where, what = faults(path=path)
    assert where.startswith(f"{path}:{line}  data.sources.0.path = {str(tmp_path)[:40]}")
    wrong, right = tmp_path / "corpsu.txt", tmp_path / "corpus.txt"
    assert what == f"    no such file or folder: {wrong}; did you mean {right}?"


def test_all_that_is_missing_comes_together(tmp_path: Path) -> None:
    found = faults(
        f"data.sources=[{{path: {tmp_path}}}, {{path: a}}, {{path: {tmp_path}/b}}]",
        "data.tokenizer.path=nowhere.json",
    )
    assert [line.split("  ")[1].split(" = ")[0] for line in found[::2]] == [
        "data.sources.1.path",
        "data.sources.2.path",
        "data.tokenizer.path",
    ]
    assert f"(looked in {Path.cwd()})" in found[1] and "looked in" not in found[3]


@pytest.mark.parametrize("given", ["shard", "shard.bin", "shard.idx"])
def test_a_megatron_prefix_means_two_files(tmp_path: Path, given: str) -> None:
    source = f"data.sources=[{{path: {tmp_path}/{given}, format: megatron}}]"
    (tmp_path / "shard.bin").write_bytes(b"")
    (missing,) = faults(source)[1::2]
    assert f"{tmp_path}/shard.idx" in missing
    (tmp_path / "shard.idx").write_bytes(b"")
    assert faults(source) == []


@pytest.mark.parametrize("name", ["none", "file"])
def test_a_model_must_be_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    start = ["model=null", "elastic=null", "eval.subnets={}", f"init_from={tmp_path}/{name}"]
    assert "model directory" in faults(*start)[1]
    assert "holds no config.json" in faults(*start, f"init_from={tmp_path}")[1]
    (tmp_path / "config.json").write_text("{}")
    assert faults(*start, f"init_from={tmp_path}") == []
