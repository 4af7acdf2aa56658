"""The stage as a whole, in this process: new model, mid-training, errors, what it leaves behind."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from paddle_ernie.config.stages import PretrainConfig
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.model_dir import load_model_dir, model_arrays, verify_model_dir
from paddle_ernie.monitor.dashboards import find_metric
from paddle_ernie.train.checkpoint import list_checkpoints
from paddle_ernie.train.pretrain import run_pretrain
from paddle_ernie.utils.errors import InputError, Interrupted, TrainingError
from paddle_ernie.utils.options import RunOptions, StopFlag
from tests.train.tiny import ELASTIC, TINY

ConfigFactory = Callable[..., PretrainConfig]


@pytest.fixture(scope="module")
def text_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents with something to learn: counting, in words."""
    folder = tmp_path_factory.mktemp("text")
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    for number in range(120):
        sentence = " ".join(words[(number + i) % 10] for i in range(40 + number))
        (folder / f"{number}.txt").write_text(sentence + f" end of {number}.\n")
    return folder


@pytest.fixture
def make_config(tmp_path: Path, text_dir: Path, tmp_path_factory) -> ConfigFactory:
    """A few steps on the text; sections are updated by keyword, run folder is `tmp_path/run`."""

    def make(output: str = "run", **changes: dict) -> PretrainConfig:
        sections = {
            "run": {"output_dir": tmp_path / output, "seed": 3},
            "model": {**TINY.model_dump(), "vocab_size": None, "initializer_range": 0.02},
            "data": {
                "sources": [{"path": text_dir}],
                "tokenizer": {"vocab_size": 300},
                "max_seq_len": 32,
                "valid_fraction": 0.1,
                "cache_dir": text_dir.parent / "cache",
                "num_workers": 1,
            },
            "train": {
                "max_steps": 6,
                "global_batch_size": 4,
                "micro_batch_size": 2,
                "learning_rate": 1e-2,
                "moe_balance_loss_weight": 0.01,
            },
            "elastic": ELASTIC.model_dump(),
            "checkpoint": {"save_steps": 4},
            "eval": {
                "eval_steps": 3,
                "eval_rows": 2,
                "final_eval_rows": 4,
                "subnets": {"small": {"layers": 2, "experts": 2, "top_k": 1}},
            },
            "monitor": {
                "logging_steps": 2,
                "sample_prompts": ["one two"],
                "sample_tokens": 3,
                "peak_gflops": 50,
            },
        }
        for name, change in changes.items():
            sections[name] = change if change is None else {**(sections.get(name) or {}), **change}
        if "init_from" in changes:
            sections |= {"init_from": changes["init_from"]["path"], "model": None}
        return PretrainConfig(stage="pretrain", **sections)

    return make


def quiet(**options) -> RunOptions:
    return RunOptions(console=Console(file=io.StringIO(), width=120), **options)


def shown(options: RunOptions) -> str:
    return options.console.file.getvalue()


def read_records(config: PretrainConfig) -> list[dict]:
    lines = (config.run.output_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_leaves_model_checkpoints_metrics_and_summary(make_config: ConfigFactory) -> None:
    config, options = make_config(), quiet()
    result = run_pretrain(config, options)
    verify_model_dir(result.model_dir)
    model = load_model_dir(result.model_dir)
    assert model.config.vocab_size == Tokenizer.load(result.model_dir).vocab_size
    checkpoints = list_checkpoints(config.run.output_dir / "checkpoints")
    assert [path.name for path in checkpoints] == ["step-00000006", "step-00000004"]
    for name, array in model_arrays(load_model_dir(checkpoints[0])).items():
        np.testing.assert_array_equal(array, model_arrays(model)[name])
    summary = json.loads((config.run.output_dir / "summary.json").read_text())
    assert summary == result.summary
    assert summary["steps"] == 6 and summary["tokens"] == 6 * 4 * 32
    assert set(summary["eval"]) == {"full", "small"}
    assert summary["eval"]["small"]["params"]["total"] < summary["eval"]["full"]["params"]["total"]
    table = shown(options)
    assert "small" in table and "bits per byte" in table


def test_every_metric_is_declared_and_every_kind_is_logged(make_config: ConfigFactory) -> None:
    config = make_config()
    run_pretrain(config, quiet())
    records = read_records(config)
    names = set().union(*(record.keys() for record in records)) - {"step", "time"}
    for kind in ("histograms", "texts"):
        names |= set().union(*(record.get(kind, {}).keys() for record in records))
    names -= {"histograms", "texts"}
    assert [name for name in sorted(names) if find_metric(name) is None] == []
    assert {"loss/train", "loss/mtp", "loss/balance", "train/lr", "moe/bias_norm"} <= names
    assert {"eval/full/bpb", "eval/small/loss", "samples/0", "moe/layer_01/load"} <= names
    assert {"throughput/flop_utilisation", "time/step_s", "memory/peak_bytes"} <= names
    logged = [record["step"] for record in records if "loss/train" in record]
    evaluated = [record["step"] for record in records if "eval/full/loss" in record]
    assert (logged, evaluated) == ([2, 4, 6], [3, 6])
    sample = records[-1]["texts"]["samples/0"]
    assert sample.startswith("one two") and len(sample) > len("one two")


def test_learns_and_final_evaluation_uses_its_own_rows(make_config: ConfigFactory) -> None:
    config = make_config(train={"max_steps": 30})
    result = run_pretrain(config, quiet())
    losses = [r["eval/full/loss"] for r in read_records(config) if "eval/full/loss" in r]
    assert losses[-1] < losses[0] - 1
    assert result.summary["eval"]["full"]["tokens"] > 3 * 32  # four rows, not two


def test_micro_batches_and_threads_of_the_run_do_not_change_the_data(
    make_config: ConfigFactory,
) -> None:
    whole = make_config("whole", train={"micro_batch_size": 4})
    split = make_config("split", train={"micro_batch_size": 1})
    run_pretrain(whole, quiet())
    run_pretrain(split, quiet())
    for one, other in zip(read_records(whole), read_records(split), strict=True):
        if "loss/train" in one:
            assert one["loss/train"] == pytest.approx(other["loss/train"], rel=1e-4)


def test_finished_run_is_left_alone_and_never_starts_over(make_config: ConfigFactory) -> None:
    config = make_config()
    first = run_pretrain(config, quiet())
    weights = first.model_dir / "model.safetensors"
    before = weights.stat().st_mtime_ns
    options = quiet()
    assert run_pretrain(config, options) == first
    assert "nothing to do" in shown(options)
    assert weights.stat().st_mtime_ns == before
    content = weights.read_bytes()
    run_pretrain(config, quiet(resume="never"))
    assert weights.stat().st_mtime_ns != before
    assert weights.read_bytes() == content
    assert [r["step"] for r in read_records(config) if "loss/train" in r] == [2, 4, 6]


def test_explicit_checkpoint_rewinds(make_config: ConfigFactory) -> None:
    config = make_config()
    result = run_pretrain(config, quiet())
    content = (result.model_dir / "model.safetensors").read_bytes()
    path = config.run.output_dir / "checkpoints" / "step-00000004"
    options = quiet(resume=str(path))
    run_pretrain(config, options)
    assert "resumed after step 4 of 6" in shown(options)
    assert (result.model_dir / "model.safetensors").read_bytes() == content


def test_mid_training_takes_model_and_tokenizer(make_config: ConfigFactory) -> None:
    parent = run_pretrain(make_config("parent"), quiet())
    config = make_config(
        "child",
        init_from={"path": parent.model_dir},
        data={"tokenizer": {"vocab_size": 290 + 10}},
        train={"max_steps": 1, "learning_rate": 1e-9, "moe_bias_update_speed": 0.0},
        elastic=None,
    )
    child = run_pretrain(config, quiet())
    parent_arrays = model_arrays(load_model_dir(parent.model_dir))
    for name, array in model_arrays(load_model_dir(child.model_dir)).items():
        np.testing.assert_allclose(array, parent_arrays[name], atol=1e-6)
    assert Tokenizer.load(child.model_dir).fingerprint == (
        Tokenizer.load(parent.model_dir).fingerprint
    )
    assert child.summary["eval"]["full"]["loss"] == pytest.approx(
        parent.summary["eval"]["full"]["loss"], abs=1e-4
    )


def test_vocabulary_smaller_than_the_tokenizer_is_an_input_error(
    make_config: ConfigFactory,
) -> None:
    config = make_config(model={"vocab_size": 200})
    with pytest.raises(InputError, match=r"model\.vocab_size.*200.*tokenizer"):
        run_pretrain(config, quiet())


def test_padded_vocabulary_trains(make_config: ConfigFactory) -> None:
    result = run_pretrain(make_config(model={"vocab_size": 512}), quiet())
    assert load_model_dir(result.model_dir).config.vocab_size == 512


def test_stop_before_the_first_step_and_between_steps(make_config: ConfigFactory) -> None:
    stop = StopFlag()
    stop.set("SIGTERM")
    with pytest.raises(Interrupted):
        run_pretrain(make_config(), quiet(stop=stop))


def test_exploding_run_stops_with_the_reason(make_config: ConfigFactory) -> None:
    config = make_config(train={"max_steps": 50, "learning_rate": 1e30, "max_nonfinite_steps": 2})
    with pytest.raises(TrainingError, match=r"3 steps in a row.*train\.learning_rate"):
        run_pretrain(config, quiet())


@pytest.mark.parametrize("name", ["full", "a/b", " "])
def test_subnet_names_that_metrics_cannot_have(make_config: ConfigFactory, name: str) -> None:
    config = make_config(eval={"subnets": {name: {"layers": 2}}})
    with pytest.raises(InputError, match=r"eval\.subnets"):
        run_pretrain(config, quiet())


def test_rows_longer_than_the_parent_model_is_meant_for(make_config: ConfigFactory) -> None:
    parent = run_pretrain(make_config("parent"), quiet())
    config = make_config("child", init_from={"path": parent.model_dir}, data={"max_seq_len": 128})
    with pytest.raises(InputError, match=r"data\.max_seq_len is 128.*at most 64"):
        run_pretrain(config, quiet())


def test_faulty_input_with_resume_never_leaves_the_old_run(make_config: ConfigFactory) -> None:
    result = run_pretrain(make_config(), quiet())
    with pytest.raises(InputError):
        run_pretrain(make_config(model={"vocab_size": 200}), quiet(resume="never"))
    verify_model_dir(result.model_dir)
