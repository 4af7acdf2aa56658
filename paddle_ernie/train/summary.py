"""What a finished run says about itself: summary.json, the table on the terminal, hyper-parameters.

Called by `run_pretrain`; the pipeline's report reads summary.json.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.config.stages import PretrainConfig
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.models.cost import ParameterCounts, memory_estimate, parameter_counts
from paddle_ernie.monitor import tables
from paddle_ernie.monitor.tables import Column, Table
from paddle_ernie.train.evaluate import FULL, EvalResult
from paddle_ernie.train.loop import TrainState
from paddle_ernie.train.machine import peak_resident_bytes


def summarise(
    config: PretrainConfig,
    model: ModelConfig,
    state: TrainState,
    results: Mapping[str, EvalResult],
) -> dict[str, Any]:
    """Figures of a finished run as JSON values."""
    return {
        "kind": "pretrain",
        "steps": state.step,
        "tokens": state.tokens,
        "skipped_steps": state.skipped_steps,
        "train_seconds": state.train_seconds,
        "tokens_per_s": state.tokens / max(state.train_seconds, 1e-9),
        "peak_memory_bytes": peak_resident_bytes(),
        "predicted_memory_bytes": memory_estimate(
            model, config.train, config.data.max_seq_len, config.precision
        ).total,
        "eval": {
            name: describe_result(result, model, _subnet(config, model, name))
            for name, result in results.items()
        },
    }


def describe_result(result: EvalResult, model: ModelConfig, subnet: Subnet) -> dict[str, Any]:
    """One evaluated model or subnet as JSON values."""
    return {
        "loss": result.loss,
        "bpb": result.bits_per_byte,
        "ppl": result.perplexity,
        "tokens": result.targets,
        "bytes": result.target_bytes,
        "params": _counts(parameter_counts(model, subnet.sizes())),
    }


def headline(summary: Mapping[str, Any]) -> str:
    """One line: how long, how fast, how much memory."""
    skipped = f" ({summary['skipped_steps']} skipped)" if summary["skipped_steps"] else ""
    return (
        f"{summary['steps']:,} steps{skipped}, "
        f"{tables.count(summary['tokens'])} tokens in {tables.duration(summary['train_seconds'])} "
        f"({tables.rate(summary['tokens_per_s'])}), peak memory "
        f"{tables.size(summary['peak_memory_bytes'])}"
    )


def summary_table(summary: Mapping[str, Any]) -> Table:
    """One row per evaluated model: the full one and the named subnets."""
    columns = (
        Column("model", align="left"),
        Column("parameters", show=tables.count),
        Column("active", show=tables.count),
        Column("loss", show=tables.bits),
        Column("bits per byte", show=tables.bits),
        Column("perplexity"),
    )
    rows = [
        (
            name,
            result["params"]["total"],
            result["params"]["active"],
            result["loss"],
            result["bpb"],
            result["ppl"],
        )
        for name, result in summary["eval"].items()
    ]
    return Table("Validation", columns, rows)


def hyper_parameters(config: PretrainConfig) -> dict[str, bool | int | float | str | None]:
    """The configuration as dotted keys, for VisualDL; lists and sources as text."""
    flat: dict[str, bool | int | float | str | None] = {}
    sections = config.model_dump(mode="json", exclude={"data": {"sources"}, "stage": True})
    _flatten(sections, "", flat)
    flat["data.sources"] = ", ".join(
        str(source.name or source.path or source.format) for source in config.data.sources
    )
    return flat


def _flatten(value: Any, key: str, flat: dict[str, Any]) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _flatten(inner, f"{key}.{name}" if key else name, flat)
    elif isinstance(value, list):
        flat[key] = ", ".join(map(str, value))
    else:
        flat[key] = value


def _subnet(config: PretrainConfig, model: ModelConfig, name: str) -> Subnet:
    if name == FULL:
        return Subnet.full(model)
    return Subnet.from_spec(config.eval.subnets[name], model)


def _counts(counts: ParameterCounts) -> dict[str, int]:
    return asdict(counts) | {
        "total_without_embedding": counts.total_without_embedding,
        "active_without_embedding": counts.active_without_embedding,
    }
