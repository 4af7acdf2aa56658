import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from paddle_ernie.config.stages import PipelineConfig
from paddle_ernie.monitor.records import MetricRecord
from paddle_ernie.monitor.tables import MISSING
from paddle_ernie.monitor.writer import Monitor
from paddle_ernie.post.pipeline import StageFolder, stage_folders
from paddle_ernie.post.report import write_pipeline_report
from paddle_ernie.utils.errors import CheckpointError
from paddle_ernie.utils.files import write_json

MODEL = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "moe_num_experts": 8,
    "moe_k": 2,
    "moe_intermediate_size": 32,
}
SUBNETS = {"depth-3": {"layers": 3}, "top-1": {"top_k": 1}}
PARAMS = {
    "total": 10_000_000,
    "active": 4_000_000,
    "total_without_embedding": 9_000_000,
    "active_without_embedding": 3_000_000,
}
CUT = {
    "total": 4_200_000,
    "active": 2_600_000,
    "total_without_embedding": 3_240_000,
    "active_without_embedding": 1_620_000,
}
SOURCE = {
    "name": "python",
    "files": 900,
    "duplicates": 3,
    "skipped": [],
    "train": {"documents": 850, "bytes": 8_000_000, "tokens": 2_350_000},
    "valid": {"documents": 47, "bytes": 400_000, "tokens": 120_000},
}
DEPTH_3 = {**PARAMS, "total_without_embedding": 6_750_000, "active_without_embedding": 2_250_000}
SEED = 7


def config(output_dir: Path, stages: list[dict]) -> PipelineConfig:
    sources = [{"name": "python", "format": "python_stdlib"}]
    return PipelineConfig.model_validate(
        {
            "stage": "pipeline",
            "run": {"output_dir": output_dir},
            "data": {"sources": sources},
            "stages": stages,
        }
    )


STAGES = [
    {"kind": "tokenizer", "name": "tokenizer"},
    {
        "kind": "pretrain",
        "name": "pretrain",
        "model": MODEL,
        "train": {"max_steps": 200},
        "eval": {"subnets": SUBNETS},
    },
    {
        "kind": "extract",
        "name": "extract",
        "init_from": "pretrain",
        "extract": {"total_ratio": 0.36, "active_ratio": 0.54},
    },
    {
        "kind": "pretrain",
        "name": "midtrain",
        "init_from": "extract",
        "train": {"max_steps": 100},
    },
    {"kind": "samples", "name": "samples", "models": ["pretrain", "midtrain"], "prompts": ["a"]},
    {"kind": "report", "name": "report"},
]


def evaluation(bpb: float) -> dict:
    return {"loss": 2 * bpb, "bpb": bpb, "ppl": float(np.exp(2 * bpb)), "rows": 64}


def pretrain_summary(params: dict, scores: dict[str, float]) -> dict:
    summary = {
        "kind": "pretrain",
        "tokens": 819_200,
        "steps": 200,
        "train_seconds": 100.0,
        "tokens_per_s": 8192.0,
        "eval": {name: evaluation(value) for name, value in scores.items()},
        "peak_memory_bytes": 1.9e9,
        "predicted_memory_bytes": 1.8e9,
    }
    summary["eval"]["full"]["params"] = params
    return summary


def write_metrics(path: Path, steps: int, start: float, end: float) -> None:
    """A run of `steps` steps whose loss falls from `start` to `end` bits a byte."""
    rng = np.random.default_rng(SEED)
    with Monitor(path, None) as monitor:
        for step in range(5, steps + 1, 5):
            bpb = end + (start - end) * np.exp(-6 * step / steps) + rng.normal() * 0.03
            axes = {"full": 0.0, "depth": 0.3, "width": 0.1, "sparsity": 0.15}
            scalars = {"train/bits_per_byte": bpb, "moe/load_max_over_mean": 1 + bpb / 3}
            scalars |= {"throughput/flop_utilisation": 0.41}
            scalars |= {f"loss/axis/{axis}": 2 * bpb + extra for axis, extra in axes.items()}
            loads = {f"moe/layer_{i:02d}/load": rng.integers(300, 700, 8) for i in (1, 2, 3)}
            monitor.write(MetricRecord(step, scalars, loads))
            if step % 50 == 0:
                shown = {"full": bpb, "depth-3": bpb + 0.2, "top-1": bpb + 0.1}
                scores = {f"eval/{name}/bpb": value for name, value in shown.items()}
                monitor.write(MetricRecord(step, scores))


@pytest.fixture
def run(tmp_path) -> dict[str, StageFolder]:
    """The folders of a finished pipeline, as its stages leave them."""
    folders = stage_folders(config(tmp_path / "quickstart", STAGES))
    write_json(
        folders["tokenizer"].path / "summary.json",
        {
            "kind": "tokenizer",
            "vocab_size": 4096,
            "sources": [SOURCE],
            "bytes_per_token": 3.4,
            "bpb": {"bigram": 3.66, "xz": 1.67},
        },
    )
    scores = {"full": 2.1, "depth-3": 2.3, "top-1": 2.2}
    summary = pretrain_summary(PARAMS, scores)
    summary["eval"]["depth-3"]["params"] = DEPTH_3
    write_json(folders["pretrain"].path / "summary.json", summary)
    write_metrics(folders["pretrain"].path / "metrics.jsonl", 200, 8.0, 2.1)
    write_json(
        folders["extract"].path / "summary.json",
        {
            "kind": "extract",
            "subnet": {"layers": [0, 1, 3]},
            "ratios": {"total": 0.36, "active": 0.54},
            "params_before": PARAMS,
            "params_after": CUT,
            "eval": {"full": evaluation(2.9)},
        },
    )
    summary = pretrain_summary(CUT, {"full": 2.25})
    write_json(folders["midtrain"].path / "summary.json", summary)
    write_metrics(folders["midtrain"].path / "metrics.jsonl", 100, 2.9, 2.25)
    texts = [
        {"model": "pretrain", "prompt": "def f(", "text": "x):\n    ```return``` x"},
        {"model": "midtrain", "prompt": "def f(", "text": "y):\n" + "pass\n" * 500},
    ]
    write_json(folders["samples"].path / "samples.json", texts)
    for number, (name, folder) in enumerate(folders.items()):
        if name != "report":
            folder.record(done=True, seconds=10.0 * (number + 1))
    return folders


def report_of(run: dict[str, StageFolder], width: int = 140) -> tuple[dict, str, str]:
    """report.json, report.md, and what the terminal showed."""
    console = Console(file=io.StringIO(), width=width)
    directory = run["report"].path.parent
    write_pipeline_report(directory, list(run.values()), console)
    numbers = json.loads((directory / "report.json").read_text())
    return numbers, (directory / "report.md").read_text(), console.file.getvalue()


def test_report_json_holds_every_figure_under_its_stable_name(run):
    numbers, _, _ = report_of(run)
    expected = {
        "format": 1,
        "bpb.full": 2.1,
        "bpb.subnet.depth-3": 2.3,
        "bpb.subnet.top-1": 2.2,
        "bpb.extracted_before": 2.9,
        "bpb.extracted_after": 2.25,
        "bpb.bigram": 3.66,
        "bpb.xz": 1.67,
        "loss.full": 4.2,
        "ppl.extracted_after": float(np.exp(4.5)),
        "params.total": 10_000_000,
        "params.active": 4_000_000,
        "params.total_without_embedding": 9_000_000,
        "params.active_without_embedding": 3_000_000,
        "params.extracted.total": 4_200_000,
        "params.extracted.active_without_embedding": 1_620_000,
        "ratio.total": 0.36,
        "ratio.active": 0.54,
        "time.tokenizer_s": 10.0,
        "time.midtrain_s": 40.0,
        "throughput.pretrain_tokens_per_s": 8192.0,
        "tokens.pretrain": 819_200,
        "steps.midtrain": 200,
        "flop_utilisation.pretrain": 0.41,
        "memory.pretrain_peak_bytes": 1.9e9,
        "memory.pretrain_predicted_bytes": 1.8e9,
        "tokenizer.vocab_size": 4096,
    }
    assert {name: numbers.get(name) for name in expected} == pytest.approx(expected)


def test_report_md_compares_the_models_and_shows_every_figure_it_names(run):
    _, page, terminal = report_of(run)
    directory = run["report"].path.parent
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for label, bpb in {
        "full model": "2.100",
        "subnet depth-3": "2.300",
        "extracted, as cut": "2.900",
        "extracted, after mid-training": "2.250",
        "byte bigram": "3.660",
        "xz -9e": "1.670",
    }.items():
        assert any(label in row and bpb in row for row in rows), label
        assert label in terminal and bpb in terminal
    assert "**2.100 bits a byte**, 1.560 fewer than a byte bigram" in page
    assert (
        "keeps 36.0 % of the parameters and 54.0 % of the active ones (without embeddings)" in page
    )
    pictures = [line.split("](")[1].rstrip(")") for line in page.splitlines() if "![" in line]
    assert len(pictures) == len(set(pictures)) == 6
    for picture in pictures:
        assert Image.open(directory / picture).width == 900


def test_models_are_listed_with_the_parameters_they_use(run):
    _, page, _ = report_of(run)
    cells = {}
    for line in page.splitlines():
        name, *rest = [cell.strip() for cell in line.strip("|").split("|")]
        cells.setdefault(name, rest)
    assert cells["subnet depth-3"][3:] == ["6.75 M", "2.25 M"]
    assert cells["subnet top-1"][3:] == [MISSING, MISSING]
    assert cells["extracted, as cut"][3:] == ["3.24 M", "1.62 M"]
    assert cells["kept"] == ["42.0 %", "36.0 %", "65.0 %", "54.0 %"]
    assert cells["python"] == ["900", "3", "850", "8.00 MB", "2.35 M", "47", "400 kB", "120 k"]


def test_samples_are_shown_verbatim_and_cut(run):
    _, page, _ = report_of(run)
    assert "````text\ndef f(x):\n    ```return``` x\n````" in page
    assert "[...]" in page
    assert page.count("pass") < 200


def test_tables_fit_a_terminal_of_80_characters(run):
    lines = report_of(run, width=80)[2].splitlines()
    assert not any("…" in line for line in lines)
    wide = report_of(run)[2].splitlines()
    assert [line.rstrip() for line in lines[:-1]] == [line.rstrip() for line in wide[:-1]]


def test_a_second_report_replaces_the_first(run):
    first = report_of(run)
    assert report_of(run) == first


def test_a_single_training_stage_makes_a_report_too(tmp_path):
    step = {"kind": "pretrain", "name": "my-run", "model": MODEL, "train": {"max_steps": 5}}
    folders = stage_folders(config(tmp_path / "one", [step, STAGES[-1]]))
    summary = pretrain_summary(PARAMS, {"full": 2.0})
    folder = folders["my-run"]
    write_json(folder.path / "summary.json", summary)
    with Monitor(folder.path / "metrics.jsonl", None) as monitor:
        for step, used in enumerate((0.2, 0.4, 0.3)):
            monitor.write(MetricRecord(step, {"throughput/flop_utilisation": used}))
    folder.record(done=True, seconds=3.0)
    numbers, page, _ = report_of(folders)
    assert numbers["bpb.full"] == 2.0
    assert numbers["time.my-run_s"] == 3.0
    assert numbers["params.active"] == 4_000_000
    assert numbers["flop_utilisation.my-run"] == pytest.approx(0.3)  # median of what was logged
    assert "bigram" not in page


@pytest.mark.parametrize(
    ("stage", "file", "content", "message"),
    [
        ("pretrain", "summary.json", None, "the stage left no such file"),
        ("midtrain", "summary.json", "{}", "tokens: Field required"),
        ("extract", "summary.json", '{"kind"', "cannot be read"),
        ("samples", "samples.json", "[1]", "cannot be read"),
    ],
)
def test_missing_or_damaged_records_are_named(run, stage, file, content, message):
    path = run[stage].path / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(CheckpointError, match=f"{stage}/{file}.*{message}"):
        report_of(run)
    assert not (run["report"].path.parent / "report.md").exists()
