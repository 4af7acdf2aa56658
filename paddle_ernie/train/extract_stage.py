"""The `extract` stage: from an elastic model's directory to a smaller one's. Called by `launch`.

    model directory --> calibration rows --> Importance
                                                |
               sizes, or ratios --search--> SubnetSpec --> Subnet --> standalone model directory
                                                                      + extraction.json

    <output_dir>/model/          the extracted model
    <output_dir>/summary.json    sizes before and after, for reports

`tools/extract.py` calls `extract_to`, which writes the model directory alone. Either it is written
whole or not at all; the same model, text and seed give the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from paddle_ernie.config.stages import ExtractConfig
from paddle_ernie.data.corpus import Corpus, prepare_corpus
from paddle_ernie.data.loader import TrainLoader, valid_batch
from paddle_ernie.data.types import Batch
from paddle_ernie.elastic.extract import extract_arrays
from paddle_ernie.elastic.importance import mean_loss, measure_importance
from paddle_ernie.elastic.ranking import Importance
from paddle_ernie.elastic.search import search_spec
from paddle_ernie.elastic.standalone import SizeComparison, compare_sizes, standalone_config
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import load_model_dir, model_arrays, save_model_dir
from paddle_ernie.monitor import tables
from paddle_ernie.monitor.progress import Progress
from paddle_ernie.monitor.tables import Column, Table
from paddle_ernie.ops.numerics import Recipe
from paddle_ernie.train.evaluate import FULL, bytes_by_id, evaluate_subnet
from paddle_ernie.train.run_folder import RunFolder
from paddle_ernie.train.summary import describe_result
from paddle_ernie.utils.errors import InputError, Interrupted
from paddle_ernie.utils.files import directory_atomic, sha256, write_json
from paddle_ernie.utils.manifest import MANIFEST_FILE, write_manifest
from paddle_ernie.utils.options import RunOptions

EXTRACTION_FILE = "extraction.json"
PASS_ROWS = 8  # rows of a calibration forward pass: bounds its memory, changes nothing else


@dataclass(frozen=True)
class ExtractResult:
    """What was cut out, and how it compares."""

    model_dir: Path
    parent_dir: Path
    parent_manifest_sha256: str
    subnet: Subnet
    sizes: SizeComparison
    importance: Importance | None
    """None if experts were taken by lowest id and layers evenly."""
    losses: tuple[float, float] | None
    """Nats per token on the calibration text of the whole model and of the Subnet in it."""
    evaluation: dict[str, Any] | None
    """How the cut model does on validation text, without further training; None without text."""

    def to_json(self) -> dict[str, Any]:
        """What summary.json holds."""
        return {
            "kind": "extract",
            "derived_from": str(self.parent_dir),
            "parent_manifest_sha256": self.parent_manifest_sha256,
            "subnet": self.subnet.to_json(),
            "subnet_id": self.subnet.id,
            "importance": self.importance.method if self.importance else "first",
            "eval": {FULL: self.evaluation} if self.evaluation else {},
            "calibration_loss": dict(zip(("before", "after"), self.losses or (), strict=False)),
            **self.sizes.to_json(),
        }


def run_extract(config: ExtractConfig, options: RunOptions) -> ExtractResult:
    """Extract into `<output_dir>/model` and write `summary.json`."""
    folder = RunFolder(config.run.output_dir)
    with folder.lock():
        folder.summary.unlink(missing_ok=True)
        result = extract_to(config, folder.model, options)
        write_json(folder.summary, result.to_json())
    return result


def extract_to(config: ExtractConfig, output: Path, options: RunOptions) -> ExtractResult:
    """Extract what `config` says into the model directory `output` and print the comparison."""
    if output.resolve() == config.init_from.resolve():
        raise InputError(f"{output}: the output is the model itself; give another folder")
    model = load_model_dir(config.init_from)
    model.recipe = Recipe.of(config.precision)
    if config.extract.subnet is not None:
        # Sizes that do not fit are an error now, not after tokenising and measuring.
        Subnet.from_spec(config.extract.subnet, model.config)
    corpus = _corpus(config, options)
    rows = _calibration_rows(config, corpus) if corpus else []
    importance = _measure(model, rows, config, options)
    subnet = _choose(config, model, importance)
    losses = evaluation = None
    if corpus:
        full = Subnet.full(model.config)
        losses = (mean_loss(model, rows, full), mean_loss(model, rows, subnet))
        evaluation = _evaluate(config, corpus, model, subnet)
    result = ExtractResult(
        model_dir=output,
        parent_dir=config.init_from,
        parent_manifest_sha256=sha256(config.init_from / MANIFEST_FILE),
        subnet=subnet,
        sizes=compare_sizes(model.config, standalone_config(model.config, subnet)),
        importance=importance,
        losses=losses,
        evaluation=evaluation,
    )
    _write(result, model)
    _show(result, model, options.console)
    return result


def _corpus(config: ExtractConfig, options: RunOptions) -> Corpus | None:
    """Text to measure on; none if nothing is to be measured."""
    if config.extract.importance == "first":
        return None
    return prepare_corpus(
        config.data,
        cache_dir=config.data.cache_dir or config.run.output_dir / "cache",
        tokenizer_path=config.init_from,
        progress=Progress(options.console),
        stop=options.stop,
    )


def _calibration_rows(config: ExtractConfig, corpus: Corpus) -> list[Batch]:
    """Training rows in passes."""
    seq_len = config.data.max_seq_len
    available = sum(store.num_tokens // seq_len for store in corpus.train)
    batch = TrainLoader(
        corpus,
        max_seq_len=seq_len,
        global_batch_size=min(config.extract.calibration_rows, max(available, 1)),
        seed=config.run.seed,
    ).next_batch()
    return [batch.rows(start, start + PASS_ROWS) for start in range(0, len(batch), PASS_ROWS)]


def _measure(
    model: ErnieMoeModel, rows: Sequence[Batch], config: ExtractConfig, options: RunOptions
) -> Importance | None:
    method = config.extract.importance
    if method == "first":
        return None
    passes = model.config.num_hidden_layers + 1
    with Progress(options.console).task("importance", total=passes, unit="pass") as task:

        def count_pass() -> None:
            if options.stop:
                raise Interrupted(
                    f"stopped while importance was measured ({options.stop.reason}); "
                    "nothing was written"
                )
            task.advance()

        return measure_importance(model, rows, method, before_pass=count_pass)


def _evaluate(
    config: ExtractConfig, corpus: Corpus, model: ErnieMoeModel, subnet: Subnet
) -> dict[str, Any]:
    """Validation loss of `subnet` inside the elastic model: bit for bit the cut model's."""
    batch = valid_batch(corpus, max_seq_len=config.data.max_seq_len, rows=config.extract.eval_rows)
    result = evaluate_subnet(
        model,
        batch,
        subnet,
        token_bytes=bytes_by_id(corpus, model.config),
        micro_rows=PASS_ROWS,
    )
    return describe_result(result, model.config, subnet)


def _choose(config: ExtractConfig, model: ErnieMoeModel, importance: Importance | None) -> Subnet:
    choice = config.extract
    spec = choice.subnet
    if spec is None:
        assert choice.total_ratio and choice.active_ratio, "the schema wants both without a subnet"
        found = search_spec(model.config, choice.total_ratio, choice.active_ratio, importance)
        spec = found.spec
    return Subnet.from_spec(spec, model.config, importance)


def _write(result: ExtractResult, model: ErnieMoeModel) -> None:
    arrays = extract_arrays(model_arrays(model), model.config, result.subnet)
    small = standalone_config(model.config, result.subnet)
    record = result.to_json()
    record["importance_scores"] = result.importance.to_json() if result.importance else None
    with directory_atomic(result.model_dir) as folder:
        save_model_dir(folder, arrays, small, result.parent_dir)
        write_json(folder / EXTRACTION_FILE, record)
        write_manifest(folder)


def _show(result: ExtractResult, model: ErnieMoeModel, console: Console) -> None:
    before, after = result.sizes.before, result.sizes.after
    small = standalone_config(model.config, result.subnet)
    whole_sizes = [
        ("layers", model.config.num_hidden_layers, small.num_hidden_layers),
        ("experts per MoE layer", model.config.moe_num_experts, small.moe_num_experts),
        ("experts per token", model.config.moe_k, small.moe_k),
        ("parameters", before.total, after.total),
        ("  without embeddings", before.total_without_embedding, after.total_without_embedding),
        ("active parameters", before.active, after.active),
        ("  without embeddings", before.active_without_embedding, after.active_without_embedding),
    ]
    rows: list[tuple[str | float | None, ...]] = [
        (name, old, new, tables.percent(new / old) if old else None)
        for name, old, new in whole_sizes
    ]
    if result.losses:
        rows.append(("loss on calibration text", *result.losses, None))
    columns = (Column("", align="left"), Column("before"), Column("after"), Column("kept"))
    title = (
        f"extracted subnet {result.subnet.id}: layers {', '.join(map(str, result.subnet.layers))}"
    )
    console.print(Table(title, columns, rows).to_rich())
    console.print(f"model directory: {result.model_dir}", soft_wrap=True)
