"""Checks between sections of a configuration, which no single section can make.

The loader runs them on a configuration whose sections are each valid. A fault is placed at the key
to change. What depends on a model directory or on text is checked where those are read.
"""

from collections.abc import Iterator

from paddle_ernie.config.data import DataConfig
from paddle_ernie.config.elastic import ElasticConfig, SubnetSpec
from paddle_ernie.config.faults import Fault
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.config.source import KeyPath
from paddle_ernie.config.stages import (
    ExtractConfig,
    ExtractStep,
    PipelineConfig,
    PretrainConfig,
    PretrainStep,
    ReportStep,
    StageConfig,
)


def cross_faults(config: StageConfig) -> list[Fault]:
    """Everything that does not fit together."""
    if isinstance(config, PipelineConfig):
        return list(_pipeline_faults(config))
    if isinstance(config, PretrainConfig):
        return list(_pretrain_faults(config, config.model, config.data, ()))
    assert isinstance(config, ExtractConfig), "every stage of STAGES is handled"
    return []


def _pipeline_faults(config: PipelineConfig) -> Iterator[Fault]:
    models: dict[str, ModelConfig | None] = {}  # None: sizes are known once the stage has run
    for index, step in enumerate(config.stages):
        path: KeyPath = ("stages", index)
        if isinstance(step, PretrainStep):
            model = step.model or models[step.init_from or ""]
            yield from _pretrain_faults(step, model, config.data, path)
            models[step.name] = model
        elif isinstance(step, ExtractStep):
            models[step.name] = None
            model = models[step.init_from]
            if model is not None and step.extract.subnet is not None:
                yield from _subnet_faults(step.extract.subnet, model, (*path, "extract", "subnet"))
    if any(isinstance(step, ReportStep) for step in config.stages):
        yield from _comparison_faults(config)


def _comparison_faults(config: PipelineConfig) -> Iterator[Fault]:
    """A report sets validation losses side by side: they must be of the same text."""
    first: tuple[int, str] | None = None
    for index, step in enumerate(config.stages):
        if isinstance(step, PretrainStep):
            rows, key = step.eval.final_eval_rows, ("eval", "final_eval_rows")
        elif isinstance(step, ExtractStep):
            rows, key = step.extract.eval_rows, ("extract", "eval_rows")
        else:
            continue
        if first is None:
            first = rows, step.name
        elif rows != first[0]:
            yield Fault(
                ("stages", index, *key),
                f"expected {first[0]}, the rows that stage {first[1]} is evaluated on: the report "
                "compares them",
            )


def _pretrain_faults(
    config: PretrainConfig | PretrainStep,
    model: ModelConfig | None,
    data: DataConfig,
    path: KeyPath,
) -> Iterator[Fault]:
    if model is None:
        return
    if config.model is not None:
        yield from _vocab_faults(config.model, data, (*path, "model"))
    if data.max_seq_len > model.max_position_embeddings:
        yield Fault(
            ("data", "max_seq_len"),
            f"expected at most the model's max_position_embeddings "
            f"{model.max_position_embeddings}; lower this or raise that",
        )
    if config.elastic is not None:
        yield from _elastic_faults(config.elastic, model, (*path, "elastic"))
    for name, spec in config.eval.subnets.items():
        yield from _subnet_faults(spec, model, (*path, "eval", "subnets", name))


def _vocab_faults(model: ModelConfig, data: DataConfig, path: KeyPath) -> Iterator[Fault]:
    trained = data.tokenizer.vocab_size
    if model.vocab_size is None or data.tokenizer.path is not None:
        return
    if model.vocab_size < trained:
        yield Fault(
            (*path, "vocab_size"),
            f"expected at least data.tokenizer.vocab_size {trained}, the size of the tokenizer "
            "that is trained; leave vocab_size out to take exactly that",
        )


def _elastic_faults(elastic: ElasticConfig, model: ModelConfig, path: KeyPath) -> Iterator[Fault]:
    depth, width, sparsity = elastic.depth, elastic.width, elastic.sparsity
    layers, k = model.num_hidden_layers, model.moe_k
    if depth.probability and depth.min_layers >= layers:
        yield Fault(
            (*path, "depth", "min_layers"),
            f"expected less than the model's num_hidden_layers {layers}, or depth.probability 0",
        )
    for axis, probability in (("width", width.probability), ("sparsity", sparsity.probability)):
        if probability and not model.moe_layers:
            yield Fault(
                (*path, axis, "probability"),
                f"the model has no MoE layers to reduce; set {axis}.probability to 0",
            )
    if not model.moe_layers:
        return
    if width.probability:
        for index, fraction in enumerate(width.fractions):
            yield from _fraction_faults(fraction, model, (*path, "width", "fractions", index))
    if sparsity.probability and sparsity.min_k >= k:
        yield Fault(
            (*path, "sparsity", "min_k"),
            f"expected less than the model's moe_k {k}, or sparsity.probability 0",
        )


def _fraction_faults(fraction: float, model: ModelConfig, path: KeyPath) -> Iterator[Fault]:
    experts, k = model.moe_num_experts, model.moe_k
    if not 0 < fraction < 1:
        yield Fault(path, "expected more than 0 and less than 1: a share of the experts")
        return
    pool = int(fraction * experts + 0.5)
    if max(pool, k) >= experts:
        yield Fault(
            path,
            f"leaves all {experts} experts (rounded, and at least moe_k {k}); lower it, or use "
            "more experts or a lower moe_k",
        )


def _subnet_faults(spec: SubnetSpec, model: ModelConfig, path: KeyPath) -> Iterator[Fault]:
    yield from _layer_faults(spec.layers, model.num_hidden_layers, (*path, "layers"))
    if not model.moe_layers:
        for key in ("experts", "top_k"):
            if getattr(spec, key) is not None:
                yield Fault((*path, key), "the model has no MoE layers; leave this out")
        return
    if spec.top_k is not None and spec.top_k > model.moe_k:
        yield Fault((*path, "top_k"), f"expected at most the model's moe_k {model.moe_k}")
    if spec.experts is None:
        return
    if spec.experts > model.moe_num_experts:
        yield Fault(
            (*path, "experts"),
            f"expected at most the model's moe_num_experts {model.moe_num_experts}",
        )
    top_k = spec.top_k or model.moe_k
    if spec.experts < top_k:
        default = "" if spec.top_k else ", the model's moe_k (top_k is not set here)"
        yield Fault((*path, "experts"), f"expected at least top_k {top_k}{default}")


def _layer_faults(layers: int | list[int] | None, available: int, path: KeyPath) -> Iterator[Fault]:
    if isinstance(layers, int) and not 1 <= layers <= available:
        yield Fault(path, f"expected 1 to the model's num_hidden_layers {available}")
    if not isinstance(layers, list):
        return
    if not layers:
        yield Fault(path, "expected at least one index")
    for position, layer in enumerate(layers):
        if not 0 <= layer < available:
            yield Fault((*path, position), f"expected a layer index, 0 to {available - 1}")
        elif layer in layers[:position]:
            yield Fault((*path, position), "this layer is listed twice")
