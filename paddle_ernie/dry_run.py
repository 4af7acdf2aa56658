"""`--dry-run`: the resolved configuration, and what each stage will need. Imports no Paddle.

    plan(config) -> one StagePlan per stage -> tables

Sizes that only a stage not yet run can settle are said to be known later. An extraction by ratios
is searched for here as the stage will search, without the importance of layers, which decides only
whether a dense layer is among those that stay.
"""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from paddle_ernie.config.data import DataConfig
from paddle_ernie.config.elastic import ElasticConfig
from paddle_ernie.config.inputs import input_faults
from paddle_ernie.config.loader import dump_yaml
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.config.precision import PrecisionConfig
from paddle_ernie.config.source import dotted
from paddle_ernie.config.stages import (
    ExtractChoice,
    ExtractConfig,
    ExtractStep,
    PipelineConfig,
    PipelineStep,
    PretrainConfig,
    PretrainStep,
    StageConfig,
)
from paddle_ernie.config.train import TrainConfig
from paddle_ernie.models.cost import (
    MemoryEstimate,
    ParameterCounts,
    elastic_flops_per_token,
    flops_per_token,
    memory_estimate,
    parameter_counts,
)

MODEL_CONFIG_FILE = "config.json"
GIBIBYTES_FROM = 100 * 2**30  # below, MiB tell more: the parts of an estimate differ a lot
UNITS = ("", "k", "M", "G", "T", "P", "E")


@dataclass(frozen=True)
class TrainingCost:
    """Work and memory of a training stage."""

    forward_flops_per_token: float
    train_flops_per_token: float
    elastic_flops_per_token: float | None
    """Expected over sampled sub-models; None without `elastic`."""
    tokens_per_step: int
    steps: int
    memory: MemoryEstimate

    @property
    def tokens(self) -> int:
        """All tokens of the stage, repeated text included."""
        return self.tokens_per_step * self.steps

    @property
    def flops(self) -> float:
        """All operations of the stage's training steps."""
        return self.tokens * (self.elastic_flops_per_token or self.train_flops_per_token)


@dataclass(frozen=True)
class StagePlan:
    """What is known of one stage beforehand."""

    name: str
    kind: str
    parameters: ParameterCounts | None = None
    """Of the model the stage leaves behind."""
    parent: ParameterCounts | None = None
    """Of the model an extraction starts from."""
    training: TrainingCost | None = None
    note: str = ""


def show_plan(config: StageConfig, console: Console) -> None:
    """Print the resolved configuration and a table per stage."""
    text = dump_yaml(config)
    if console.is_terminal:
        console.print(Syntax(text, "yaml", background_color="default", word_wrap=True))
    else:
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    plans = plan(config)
    for fault in input_faults(config):
        if fault.path[0] == "data":  # of a missing model, its stage's line tells
            line = f"note: {dotted(fault.path)}: {fault.text}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    for number, stage in enumerate(plans, start=1):
        title = f"stage {number}/{len(plans)}: {stage.name}" if len(plans) > 1 else stage.name
        title += f" ({stage.kind})" if stage.kind != stage.name else ""
        console.print(_table(title, stage) if stage.parameters else f"{title}: {stage.note}")
    if len(plans) > 1:
        console.print(_sum_table(plans))


def plan(config: StageConfig) -> list[StagePlan]:
    """One entry per stage; several for a pipeline."""
    name = config.run.output_dir.name
    if isinstance(config, PipelineConfig):
        return _pipeline_plans(config)
    if isinstance(config, PretrainConfig):
        source = config.init_from
        model = _with_vocab(config.model, config.data) if config.model else _model_of(source)
        missing = f"sizes are known once the model directory {source} exists"
        return [_training_plan(name, config, model, config.data, config.precision, missing)]
    assert isinstance(config, ExtractConfig), "every stage of STAGES is handled"
    model = _model_of(config.init_from)
    missing = f"sizes are known once the model directory {config.init_from} exists"
    return [_extraction_plan(name, config.extract, model, missing)[0]]


def _pipeline_plans(config: PipelineConfig) -> list[StagePlan]:
    plans: list[StagePlan] = []
    models: dict[str, ModelConfig | None] = {}
    for step in config.stages:
        stage, models[step.name] = _step_plan(step, config.data, config.precision, models)
        plans.append(stage)
    return plans


def _step_plan(
    step: PipelineStep,
    data: DataConfig,
    precision: PrecisionConfig,
    models: dict[str, ModelConfig | None],
) -> tuple[StagePlan, ModelConfig | None]:
    """The plan of a step, and the model it leaves behind."""
    if isinstance(step, PretrainStep):
        model = _with_vocab(step.model, data) if step.model else models[step.init_from or ""]
        missing = f"sizes are known after stage {step.init_from}"
        return _training_plan(step.name, step, model, data, precision, missing), model
    if isinstance(step, ExtractStep):
        missing = f"sizes are known after stage {step.init_from}"
        return _extraction_plan(step.name, step.extract, models[step.init_from], missing)
    return StagePlan(step.name, step.kind, note="nothing is trained"), None


def _training_plan(
    name: str,
    stage: PretrainConfig | PretrainStep,
    model: ModelConfig | None,
    data: DataConfig,
    precision: PrecisionConfig,
    missing: str,
) -> StagePlan:
    if model is None:
        return StagePlan(name, "pretrain", note=missing)
    cost = training_cost(model, stage.train, stage.elastic, data.max_seq_len, precision)
    return StagePlan(name, "pretrain", parameter_counts(model), training=cost)


def _extraction_plan(
    name: str, choice: ExtractChoice, model: ModelConfig | None, missing: str
) -> tuple[StagePlan, ModelConfig | None]:
    if model is None:
        return StagePlan(name, "extract", note=missing), None
    # Here, because only an extraction needs them: they import numpy.
    from paddle_ernie.elastic.search import search_spec
    from paddle_ernie.elastic.standalone import standalone_config
    from paddle_ernie.elastic.subnet import Subnet

    spec = choice.subnet
    if spec is None:
        assert choice.total_ratio and choice.active_ratio, "the schema wants both without a subnet"
        spec = search_spec(model, choice.total_ratio, choice.active_ratio).spec
    smaller = standalone_config(model, Subnet.from_spec(spec, model))
    note = f"layers {spec.layers or 'all'}, experts {spec.experts or 'all'}, "
    note += f"top-k {spec.top_k or model.moe_k}"
    sizes = parameter_counts(smaller), parameter_counts(model)
    return StagePlan(name, "extract", *sizes, note=note), smaller


def training_cost(
    model: ModelConfig,
    train: TrainConfig,
    elastic: ElasticConfig | None,
    seq_len: int,
    precision: PrecisionConfig,
) -> TrainingCost:
    """Work and memory of training `model` as `train` says on rows of `seq_len` tokens."""
    return TrainingCost(
        forward_flops_per_token=flops_per_token(model, seq_len, backward=False),
        train_flops_per_token=flops_per_token(model, seq_len, backward=True),
        elastic_flops_per_token=(
            None if elastic is None else elastic_flops_per_token(model, elastic, seq_len)
        ),
        tokens_per_step=train.global_batch_size * seq_len,
        steps=train.max_steps,
        memory=memory_estimate(model, train, seq_len, precision),
    )


def _with_vocab(model: ModelConfig, data: DataConfig) -> ModelConfig:
    """The model with the tokenizer's size where it leaves that open."""
    if model.vocab_size is not None:
        return model
    size = data.tokenizer.vocab_size
    if data.tokenizer.path is not None:
        from paddle_ernie.data.tokenizer import Tokenizer  # only a given tokenizer has to be read

        size = Tokenizer.load(data.tokenizer.path).vocab_size
    return model.model_copy(update={"vocab_size": size})


def _model_of(directory: Path | None) -> ModelConfig | None:
    """The architecture in a model directory; None if the directory is not there yet."""
    if directory is None or not (directory / MODEL_CONFIG_FILE).exists():
        return None
    from paddle_ernie.models.model_dir import read_model_config

    return read_model_config(directory)


def _table(title: str, stage: StagePlan) -> Table:
    assert stage.parameters is not None, "stages without a model have one line, no table"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("quantity", no_wrap=True)
    table.add_column("value", justify="right")
    table.add_column("without embeddings", justify="right")
    if stage.note:
        table.add_row("sizes", stage.note)
    _add_parameters(table, stage.parameters, stage.parent)
    if stage.training is not None:
        _add_training(table, stage.training)
    return table


def _add_parameters(table: Table, counts: ParameterCounts, parent: ParameterCounts | None) -> None:
    table.add_row("parameters", "", "without embeddings", style="bold")
    total, active = counts.total_without_embedding, counts.active_without_embedding
    table.add_row("  total", f"{counts.total:,}", f"{total:,}")
    table.add_row("  active per token", f"{counts.active:,}", f"{active:,}")
    if counts.mtp:
        table.add_row("  multi-token prediction", f"{counts.mtp:,}", f"{counts.mtp:,}")
    if parent is not None:
        table.add_row(
            "  share of the total",
            _share(counts.total, parent.total),
            _share(total, parent.total_without_embedding),
        )
        table.add_row(
            "  share of the active",
            _share(counts.active, parent.active),
            _share(active, parent.active_without_embedding),
        )


def _add_training(table: Table, cost: TrainingCost) -> None:
    table.add_section()
    table.add_row("work", style="bold")
    table.add_row("  FLOPs per token, forward", quantity(cost.forward_flops_per_token))
    table.add_row("  FLOPs per token, training", quantity(cost.train_flops_per_token))
    if cost.elastic_flops_per_token is not None:
        table.add_row("    with sampled sub-models", quantity(cost.elastic_flops_per_token))
    table.add_row("  tokens per step", f"{cost.tokens_per_step:,}")
    table.add_row(f"  tokens in {cost.steps:,} steps", f"{cost.tokens:,}")
    table.add_row("  FLOPs in all", quantity(cost.flops))
    table.add_section()
    table.add_row("memory (peak estimate)", style="bold")
    for part in cost.memory.__dataclass_fields__:
        table.add_row(f"  {part}", mebibytes(getattr(cost.memory, part)))
    table.add_row("  total", mebibytes(cost.memory.total), style="bold")


def _sum_table(plans: list[StagePlan]) -> Table:
    costs = [stage.training for stage in plans if stage.training is not None]
    table = Table(title="all stages", title_justify="left", show_header=False)
    open_stages = [stage.name for stage in plans if stage.note.startswith("sizes are known")]
    table.add_row("training tokens", f"{sum(cost.tokens for cost in costs):,}")
    table.add_row("training FLOPs", quantity(sum(cost.flops for cost in costs)))
    table.add_row("largest memory", mebibytes(max((c.memory.total for c in costs), default=0.0)))
    if open_stages:
        table.add_row("not counted", ", ".join(open_stages))
    return table


def quantity(value: float) -> str:
    """A number with three digits and an SI prefix: 1234567 is `1.23 M`."""
    index = 0
    while abs(value) >= 999.5 and index < len(UNITS) - 1:
        value, index = value / 1000, index + 1
    return f"{value:.3g} {UNITS[index]}".strip()


def mebibytes(value: float) -> str:
    """Bytes as MiB, as `top` and `ulimit` count; as GiB when they are many."""
    if value < GIBIBYTES_FROM:
        return f"{value / 2**20:,.0f} MiB"
    return f"{value / 2**30:,.0f} GiB"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"
