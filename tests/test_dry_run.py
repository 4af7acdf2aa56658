"""--dry-run: figures that add up, sizes from model directories and earlier stages, no Paddle."""

import asyncio
import io
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from paddle_ernie.config.loader import load_config, resolve
from paddle_ernie.config.source import parse_yaml
from paddle_ernie.dry_run import mebibytes, plan, quantity, show_plan
from paddle_ernie.models.cost import elastic_flops_per_token, flops_per_token, parameter_counts

ROOT = Path(__file__).resolve().parents[1]
DEBUG = ROOT / "configs" / "pretrain" / "debug.yaml"
QUICKSTART = ROOT / "configs" / "quickstart.yaml"
HEAVY = ("paddle", "matplotlib", "transformers", "visualdl", "tokenizers", "pyarrow", "safetensors")


def shown(path: Path, *overrides: str, terminal: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100)
    show_plan(load_config(path, overrides), console)
    return stream.getvalue()


def test_figures_of_a_training_stage() -> None:
    config = load_config(DEBUG, ["elastic=null"])
    (stage,) = plan(config)
    model = config.model.model_copy(update={"vocab_size": 1024})
    assert stage.parameters == parameter_counts(model)
    cost = stage.training
    assert cost is not None and cost.elastic_flops_per_token is None
    assert cost.tokens_per_step == 8 * 128 and cost.tokens == 8 * 128 * 20
    assert cost.flops == cost.tokens * flops_per_token(model, 128, backward=True)


def test_sampled_sub_models_cost_less() -> None:
    config = load_config(DEBUG)
    (stage,) = plan(config)
    model = config.model.model_copy(update={"vocab_size": 1024})
    assert stage.training is not None and config.elastic is not None
    expected = elastic_flops_per_token(model, config.elastic, 128)
    assert stage.training.flops == stage.training.tokens * expected
    assert expected < stage.training.train_flops_per_token


def test_stages_of_a_pipeline_start_from_earlier_ones() -> None:
    plans = {stage.name: stage for stage in plan(load_config(QUICKSTART))}
    assert list(plans) == ["tokenizer", "pretrain", "extract", "midtrain", "samples", "report"]
    cut = plans["extract"]
    assert cut.parameters == plans["midtrain"].parameters and cut.parameters is not None
    assert cut.parent == plans["pretrain"].parameters and cut.parent is not None
    share = cut.parameters.total_without_embedding / cut.parent.total_without_embedding
    assert share == pytest.approx(0.36, abs=0.04)
    assert plans["report"].training is None and plans["report"].parameters is None


def test_what_is_printed() -> None:
    length = ["stages.pretrain.train.max_steps=240", "stages.pretrain.train.decay_steps=0"]
    length += ["stages.midtrain.train.max_steps=120", "stages.midtrain.train.global_batch_size=8"]
    config, text = load_config(QUICKSTART, length), shown(QUICKSTART, *length)
    config_text, tables = text.split("\nstage 1/6: tokenizer: nothing is trained\n")
    assert resolve(parse_yaml(config_text, "shown")) == config
    for words in ("stage 2/6: pretrain ", "stage 4/6: midtrain (pretrain)", "active per token"):
        assert words in tables
    tokens = 240 * 4 * 256, 120 * 8 * 256
    assert all(f"{count:,}" in tables for count in (*tokens, sum(tokens)))
    for words in ("tokens in 240 steps", "all stages", "memory (peak estimate)"):
        assert words in tables
    assert "\x1b" not in text


def test_a_terminal_gets_colours() -> None:
    assert "\x1b[" in shown(DEBUG, terminal=True)


def test_a_model_directory_gives_the_sizes(tmp_path: Path) -> None:
    overrides = ["model=null", f"init_from={tmp_path}", "elastic=null", "eval.subnets={}"]
    (stage,) = plan(load_config(DEBUG, overrides))
    assert stage.parameters is None and "are known once the model directory" in stage.note
    assert str(tmp_path) in shown(DEBUG, *overrides)


def test_sizes_of_an_existing_model_directory(tmp_path: Path) -> None:
    model_dir = pytest.importorskip("paddle_ernie.models.model_dir")
    config = load_config(DEBUG).model.model_copy(update={"vocab_size": 777})
    model_dir.write_config(tmp_path, config)
    overrides = ["model=null", f"init_from={tmp_path}", "elastic=null", "eval.subnets={}"]
    (stage,) = plan(load_config(DEBUG, overrides))
    assert stage.parameters == parameter_counts(config)


def test_stages_after_an_unknown_model_are_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "extract.yaml"
    path.write_text(
        "stage: extract\nrun: {output_dir: out}\ninit_from: nowhere\n"
        "data: {sources: [{format: python_stdlib}]}\nextract: {subnet: {layers: 2}}\n"
    )
    assert "sizes are known once the model directory nowhere exists" in shown(path)


def cpu_seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("path", [DEBUG, QUICKSTART], ids=lambda path: path.stem)
def test_no_paddle_and_under_a_second(path: Path, tmp_path: Path) -> None:
    program = (
        "import runpy, sys\n"
        f"sys.argv = ['train.py', '-c', {str(path)!r}, '--dry-run']\n"
        "try:\n"
        f"    runpy.run_path({str(ROOT / 'tools' / 'train.py')!r}, run_name='__main__')\n"
        "except SystemExit as stop:\n"
        "    code = stop.code\n"
        f"sys.stderr.write(' '.join(m for m in {HEAVY!r} if m in sys.modules))\n"
        "sys.exit(code)\n"
    )
    seconds = []
    for _ in range(3):
        before = cpu_seconds_of_children()
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        seconds.append(cpu_seconds_of_children() - before)
        assert done.stderr == ""
    # Processor time, and the least of three: what else the machine does is not the program's.
    assert min(seconds) < 1.0
    assert list(tmp_path.iterdir()) == []  # nothing is written


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1 k"),
        (999_600, "1 M"),
        (1_234_567, "1.23 M"),
        (3.3e13, "33 T"),
        (2.5e21, "2.5e+03 E"),
    ],
)
def test_quantities(value: float, text: str) -> None:
    assert quantity(value) == text


def test_mebibytes() -> None:
    assert mebibytes(1.5 * 2**30) == "1,536 MiB"
    assert mebibytes(640 * 2**30) == "640 GiB"


def test_text_that_is_not_there_yet_is_noted(tmp_path: Path) -> None:
    text = shown(DEBUG, f"data.sources=[{{path: {tmp_path}/none}}]")
    assert f"note: data.sources.0.path: no such file or folder: {tmp_path}/none" in text
    assert "note:" not in shown(DEBUG)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        [],
        ["train.micro_batch_size=2"],
        ["train.recompute=true"],
        ["model.moe_num_experts=64", "train.micro_batch_size=4"],
        ["model.num_nextn_predict_layers=0", "elastic=null"],
    ],
    ids=lambda change: change[0] if change else "plain",
)
def test_predicted_memory_is_within_a_fifth_of_the_measured_peak(
    change: list[str], tmp_path: Path
) -> None:
    text = f"data.sources=[{{path: {Path(asyncio.__file__).parent}, glob: '*.py'}}]"
    size = ["model.hidden_size=192", "model.num_hidden_layers=8", "model.moe_num_experts=16"]
    size += ["model.moe_intermediate_size=128", "data.max_seq_len=256"]
    length = ["train.max_steps=6", "train.warmup_steps=0", "train.decay_steps=0"]
    length += ["train.global_batch_size=16", "checkpoint.save_steps=3", "eval.subnets={}"]
    overrides = [text, f"run.output_dir={tmp_path}", *size, *length, *change]
    (stage,) = plan(load_config(DEBUG, overrides))
    command = [sys.executable, str(ROOT / "tools" / "train.py"), "-c", str(DEBUG)]
    command += [part for override in overrides for part in ("-o", override)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0 and stage.training is not None
    assert stage.training.memory.total == pytest.approx(usage.ru_maxrss * 1024, rel=0.2)
