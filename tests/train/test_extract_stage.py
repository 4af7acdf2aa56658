"""The extract stage on a real model directory and real text files."""

import io
import json
import shutil

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file

from paddle_ernie.config.stages import ExtractConfig
from paddle_ernie.elastic.search import search_spec
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.elastic.supernet import uniform_plan
from paddle_ernie.models.model_dir import load_model_dir, read_model_config, verify_model_dir
from paddle_ernie.train.extract_stage import run_extract
from paddle_ernie.utils.errors import CheckpointError, InputError, Interrupted
from paddle_ernie.utils.files import sha256
from paddle_ernie.utils.options import RunOptions, StopFlag
from tests.elastic.model_dirs import write_model, write_text


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with `text/` and `model/`."""
    path = tmp_path_factory.mktemp("parent")
    write_text(path / "text")
    write_model(path, path / "text")
    return path


def config_of(made, output, **choice):
    return ExtractConfig.model_validate(
        {
            "stage": "extract",
            "run": {"output_dir": output},
            "init_from": made / "model",
            "data": {
                "sources": [{"path": made / "text"}],
                "max_seq_len": 32,
                "valid_fraction": 0.1,
                "num_workers": 1,
                "cache_dir": made / "cache",
            },
            "extract": {"calibration_rows": 10, **choice},
        }
    )


def options(stop=None):
    console = Console(file=io.StringIO(), width=120)
    return RunOptions(console=console, stop=stop or StopFlag())


def test_ratios_give_a_working_model_close_to_them(made, tmp_path):
    shown = options()
    result = run_extract(config_of(made, tmp_path, total_ratio=0.5, active_ratio=0.6), shown)
    parent, small = load_model_dir(made / "model"), load_model_dir(tmp_path / "model")
    ids = np.arange(40).reshape(2, 20)
    plan = uniform_plan(result.subnet, 2, parent.config)
    assert np.array_equal(small.logits(ids).numpy(), parent.logits(ids, plan=plan).numpy())

    summary = json.loads((tmp_path / "summary.json").read_text())
    spec = search_spec(parent.config, 0.5, 0.6, result.importance).spec
    assert Subnet.from_json(summary["subnet"]) == result.subnet
    assert result.subnet == Subnet.from_spec(spec, parent.config, result.importance)
    assert summary["ratios"]["total"] == pytest.approx(0.5, rel=0.15)
    assert summary["ratios"]["active"] == pytest.approx(0.6, rel=0.15)
    assert set(summary["calibration_loss"]) == {"before", "after"}
    text = shown.console.file.getvalue()
    assert f"{result.sizes.after.total:,}" in text
    assert result.subnet.id in text


def test_the_record_in_the_model_directory_says_where_it_came_from(made, tmp_path):
    config = config_of(made, tmp_path, subnet={"layers": 4, "experts": 5, "top_k": 2})
    result = run_extract(config, options())
    record = json.loads((tmp_path / "model" / "extraction.json").read_text())
    assert record["parent_manifest_sha256"] == sha256(made / "model" / "manifest.json")
    assert record["importance"] == "reap"
    scores = record["importance_scores"]["expert_scores"]
    for layer, pool in zip(result.subnet.layers, result.subnet.experts, strict=True):
        if pool:
            others = set(range(8)) - set(pool)
            worst = min(scores[layer][expert] for expert in pool)
            assert all(scores[layer][expert] <= worst for expert in others)
    verify_model_dir(tmp_path / "model")
    altered = tmp_path / "altered"
    shutil.copytree(tmp_path / "model", altered)
    (altered / "extraction.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"extraction\.json"):
        verify_model_dir(altered)


def test_first_takes_lowest_ids_and_reads_no_text(made, tmp_path):
    config = config_of(made, tmp_path, subnet={"layers": 3, "experts": 4}, importance="first")
    data = config.data.model_copy(update={"cache_dir": tmp_path / "untouched"})
    result = run_extract(config.model_copy(update={"data": data}), options())
    assert result.subnet.layers == (0, 2, 4)
    assert result.subnet.experts == ((), (0, 1, 2, 3), (0, 1, 2, 3))
    assert result.importance is None
    assert not (tmp_path / "untouched").exists()
    small = read_model_config(tmp_path / "model")
    assert (small.num_hidden_layers, small.moe_num_experts, small.moe_k) == (3, 4, 3)
    assert small.moe_layer_start_index == 1


def test_running_again_gives_the_same_bytes(made, tmp_path):
    choice = {"total_ratio": 0.5, "active_ratio": 0.6, "importance": "frequency"}
    weights = []
    for name in ("one", "two"):
        run_extract(config_of(made, tmp_path / name, **choice), options())
        weights.append(load_file(tmp_path / name / "model" / "model.safetensors"))
    assert weights[0].keys() == weights[1].keys()
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_fewer_rows_than_asked_for_are_enough(made, tmp_path):
    config = config_of(made, tmp_path, subnet={"layers": 4}, calibration_rows=100_000)
    assert run_extract(config, options()).losses is not None


def test_sizes_that_do_not_fit_fail_before_text_is_read(made, tmp_path):
    config = config_of(made, tmp_path, subnet={"layers": 9})
    data = config.data.model_copy(update={"cache_dir": tmp_path / "untouched"})
    with pytest.raises(InputError, match="layers: 9"):
        run_extract(config.model_copy(update={"data": data}), options())
    assert not (tmp_path / "untouched").exists()
    assert not (tmp_path / "model").exists()


def test_a_stop_leaves_no_model(made, tmp_path):
    run_extract(config_of(made, tmp_path / "warm", subnet={"layers": 4}), options())
    stop = StopFlag()
    stop.set("SIGTERM")
    with pytest.raises(Interrupted, match="SIGTERM"):
        run_extract(config_of(made, tmp_path / "cold", subnet={"layers": 4}), options(stop))
    assert not (tmp_path / "cold" / "model").exists()
    assert not (tmp_path / "cold" / "summary.json").exists()


def test_a_damaged_parent_is_refused(made, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(made / "model", damaged)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    config = config_of(made, tmp_path / "out", subnet={"layers": 4})
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        run_extract(config.model_copy(update={"init_from": damaged}), options())


def test_the_parent_is_never_overwritten(made):
    config = config_of(made, made, subnet={"layers": 4})
    with pytest.raises(InputError, match="the model itself"):
        run_extract(config, options())
    verify_model_dir(made / "model")
