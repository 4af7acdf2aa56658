"""One schema per `stage:` value, and the dictionary that names them all.

pretrain   train a model (elastic or plain), from scratch or from a model directory
extract    cut a standalone model out of an elastic one
pipeline   a chain of stages in one run folder, each skipped when it is already done
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from paddle_ernie.config.base import Section, UserPath, key_fault
from paddle_ernie.config.data import DataConfig
from paddle_ernie.config.elastic import ElasticConfig, SubnetSpec
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.config.precision import PrecisionConfig
from paddle_ernie.config.run import RunConfig
from paddle_ernie.config.train import CheckpointConfig, EvalConfig, MonitorConfig, TrainConfig


class PretrainConfig(Section):
    """Language-model training on packed documents."""

    stage: Literal["pretrain"]
    """Language-model training."""
    run: RunConfig
    """Folder, seed, threads."""
    model: ModelConfig | None = None
    """Architecture of a new model; leave out when `init_from` is given."""
    init_from: UserPath | None = None
    """Model directory to start from (mid-training); its architecture and tokenizer are taken."""
    data: DataConfig
    """Sources, tokenizer and packing."""
    train: TrainConfig
    """Length, batch, optimizer and schedule."""
    precision: PrecisionConfig = PrecisionConfig()
    """Rounding of matrix products: fp32, bf16 or FP8."""
    elastic: ElasticConfig | None = None
    """Sample sub-models per row; null trains the full model only."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When training state is saved."""
    eval: EvalConfig = EvalConfig()
    """Validation during and after training."""
    monitor: MonitorConfig = MonitorConfig()
    """What is logged, and how often."""

    @model_validator(mode="after")
    def _check_origin(self) -> Self:
        if (self.model is None) == (self.init_from is None):
            raise key_fault(
                "init_from",
                "give either `model` (a new model) or `init_from` (a model directory), not both",
            )
        return self


class ExtractChoice(Section):
    """What to cut out: a spec of sizes, or ratios that a spec is searched for."""

    subnet: SubnetSpec | None = None
    """Exact sizes; leave out to give ratios."""
    total_ratio: float | None = Field(None, gt=0, le=1)
    """Wanted share of the total parameters without embeddings (ERNIE 5.0-Exp-EA: 0.358)."""
    active_ratio: float | None = Field(None, gt=0, le=1)
    """Wanted share of the active parameters without embeddings (ERNIE 5.0-Exp-EA: 0.537)."""
    importance: Literal["reap", "frequency", "first"] = "reap"
    """How experts are ranked: router weight x output norm on calibration text, routing frequency,
    or the lowest ids."""
    calibration_rows: int = Field(32, ge=1)
    """Training rows that importance is measured on."""
    eval_rows: int = Field(128, ge=1)
    """Validation rows that the cut model is evaluated on, before any further training. Where a
    report compares the stages of a pipeline, as many as their `final_eval_rows`."""

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        ratios = (self.total_ratio is not None, self.active_ratio is not None)
        if any(ratios) != all(ratios) or (self.subnet is None) != all(ratios):
            raise key_fault(
                "subnet", "give either `subnet`, or both `total_ratio` and `active_ratio`"
            )
        return self


class ExtractConfig(Section):
    """Cut a standalone model out of an elastic one."""

    stage: Literal["extract"]
    """Cut a sub-model out."""
    run: RunConfig
    """Folder, seed, threads."""
    init_from: UserPath
    """Model directory of the elastic model."""
    data: DataConfig
    """Calibration text."""
    precision: PrecisionConfig = PrecisionConfig()
    """Rounding of matrix products: fp32, bf16 or FP8."""
    extract: ExtractChoice
    """Which sub-model, and how its experts are chosen."""


StepName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9._-]*$")]
MODEL_KINDS = frozenset({"pretrain", "extract"})  # steps that leave a model directory
RESERVED_NAMES = frozenset(  # what the run itself keeps beside its stages' folders
    {"cache", "visualdl", "config.yaml", "report.md", "report.json", "report_figures"}
)


class TokenizerStep(Section):
    """Prepares the text of a pipeline: trains the tokenizer, tokenises, measures the baselines."""

    kind: Literal["tokenizer"]
    """Prepare the data: train or copy the tokenizer, tokenise every source."""
    name: StepName
    """Name of this stage: its folder in the run, and what later stages call it."""


class PretrainStep(Section):
    """A `pretrain` stage of a pipeline; run, data, precision and monitor come from the
    pipeline."""

    kind: Literal["pretrain"]
    """Language-model training."""
    name: StepName
    """Name of this stage: its folder in the run, and what later stages call it."""
    model: ModelConfig | None = None
    """Architecture of a new model; leave out when `init_from` is given."""
    init_from: str | None = None
    """Name of the earlier stage whose model this one starts from."""
    train: TrainConfig
    """Length, batch, optimizer and schedule."""
    elastic: ElasticConfig | None = None
    """Sample sub-models per row; null trains the full model only."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When training state is saved."""
    eval: EvalConfig = EvalConfig()
    """Validation during and after training."""

    @model_validator(mode="after")
    def _check_origin(self) -> Self:
        if (self.model is None) == (self.init_from is None):
            raise key_fault(
                "name",
                f"stage {self.name!r} needs either `model` (a new model) or `init_from` (the name "
                "of an earlier stage), and not both",
            )
        return self


class ExtractStep(Section):
    """An `extract` stage of a pipeline."""

    kind: Literal["extract"]
    """Cut a sub-model out."""
    name: StepName
    """Name of this stage: its folder in the run, and what later stages call it."""
    init_from: str
    """Name of the earlier stage whose model is cut."""
    extract: ExtractChoice
    """Which sub-model, and how its experts are chosen."""


class SamplesStep(Section):
    """Text written by the models of earlier stages, side by side."""

    kind: Literal["samples"]
    """Let models write."""
    name: StepName
    """Name of this stage: its folder in the run, and what later stages call it."""
    models: list[str] = Field(min_length=1)
    """Names of earlier stages."""
    prompts: list[str] = Field(min_length=1)
    """Texts that every model continues."""
    max_tokens: int = Field(64, ge=1)
    """Longest continuation, in tokens."""
    temperature: float = Field(0.7, ge=0)
    """Sharpness of sampling; 0 always takes the likeliest token."""


class ReportStep(Section):
    """`report.md`, plots and `report.json` from what earlier stages recorded."""

    kind: Literal["report"]
    """Sum up the run."""
    name: StepName
    """Name of this stage: its folder in the run, and what later stages call it."""


PipelineStep = Annotated[
    TokenizerStep | PretrainStep | ExtractStep | SamplesStep | ReportStep,
    Field(discriminator="kind"),
]


class PipelineConfig(Section):
    """A chain of stages in one run folder, `<output_dir>/<stage name>` each."""

    stage: Literal["pipeline"]
    """Several stages in one run."""
    run: RunConfig
    """Folder, seed, threads."""
    data: DataConfig
    """Sources, tokenizer and packing."""
    precision: PrecisionConfig = PrecisionConfig()
    """Rounding of matrix products: fp32, bf16 or FP8."""
    monitor: MonitorConfig = MonitorConfig()
    """What is logged, and how often."""
    stages: list[PipelineStep] = Field(min_length=1)
    """Run in this order."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        kinds: dict[str, str] = {}
        for index, step in enumerate(self.stages):
            at = f"stages.{index}"
            if step.name in kinds:
                raise key_fault(f"{at}.name", f"two stages are named {step.name!r}")
            if step.name in RESERVED_NAMES:
                raise key_fault(f"{at}.name", f"the run itself uses the name {step.name!r}")
            for key, name in _named_models(step):
                if kinds.get(name) not in MODEL_KINDS:
                    raise key_fault(f"{at}.{key}", _not_a_model(step.name, name, kinds))
            kinds[step.name] = step.kind
        return self


def _named_models(step: PipelineStep) -> list[tuple[str, str]]:
    """(key, stage name) of every earlier model that `step` asks for."""
    if isinstance(step, SamplesStep):
        return [(f"models.{i}", name) for i, name in enumerate(step.models)]
    name = getattr(step, "init_from", None)
    return [] if name is None else [("init_from", name)]


def _not_a_model(step: str, wanted: str, kinds: dict[str, str]) -> str:
    models = [name for name, kind in kinds.items() if kind in MODEL_KINDS]
    problem = "makes no model" if wanted in kinds else "is not an earlier stage"
    return (
        f"stage {step!r} needs the model of {wanted!r}, which {problem} "
        f"(earlier stages with a model: {', '.join(models) or 'none'})"
    )


StageConfig = PretrainConfig | ExtractConfig | PipelineConfig

STAGES: dict[str, type[StageConfig]] = {
    "pretrain": PretrainConfig,
    "extract": ExtractConfig,
    "pipeline": PipelineConfig,
}
