"""One schema per `stage:` value, and the dictionary that names them all.

    pretrain   train a model (elastic or plain), from scratch or from a model directory
    extract    cut a standalone model out of an elastic one
    pipeline   a chain of stages in one run folder, each skipped when it is already done
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from paddle_ernie.config.base import Section
from paddle_ernie.config.data import DataConfig
from paddle_ernie.config.elastic import ElasticConfig, SubnetSpec
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.config.run import RunConfig
from paddle_ernie.config.train import CheckpointConfig, EvalConfig, MonitorConfig, TrainConfig


class PretrainConfig(Section):
    """Language-model training on packed documents."""

    stage: Literal["pretrain"]
    run: RunConfig
    model: ModelConfig | None = None
    """Architecture of a new model; leave out when `init_from` is given."""
    init_from: Path | None = None
    """Model directory to start from (mid-training); its architecture and tokenizer are taken."""
    data: DataConfig
    train: TrainConfig
    elastic: ElasticConfig | None = None
    """Sample sub-models per row; null trains the full model only."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    monitor: MonitorConfig = MonitorConfig()

    @model_validator(mode="after")
    def _check_origin(self) -> Self:
        if (self.model is None) == (self.init_from is None):
            raise ValueError(
                "give either `model` (a new model) or `init_from` (a model directory), and not both"
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

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        ratios = (self.total_ratio is not None, self.active_ratio is not None)
        if any(ratios) != all(ratios) or (self.subnet is None) != all(ratios):
            raise ValueError("give either `subnet`, or both `total_ratio` and `active_ratio`")
        return self


class ExtractConfig(Section):
    """Cut a standalone model out of an elastic one."""

    stage: Literal["extract"]
    run: RunConfig
    init_from: Path
    """Model directory of the elastic model."""
    data: DataConfig
    """Calibration text."""
    extract: ExtractChoice


class TokenizerStep(Section):
    """Prepares the text of a pipeline: trains the tokenizer, tokenises, measures the baselines."""

    kind: Literal["tokenizer"]
    name: str


class PretrainStep(Section):
    """A `pretrain` stage of a pipeline; run, data and monitor come from the pipeline."""

    kind: Literal["pretrain"]
    name: str
    model: ModelConfig | None = None
    init_from: str | None = None
    """Name of the earlier stage whose model this one starts from."""
    train: TrainConfig
    elastic: ElasticConfig | None = None
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()


class ExtractStep(Section):
    """An `extract` stage of a pipeline."""

    kind: Literal["extract"]
    name: str
    init_from: str
    """Name of the earlier stage whose model is cut."""
    extract: ExtractChoice


class SamplesStep(Section):
    """Text written by the models of earlier stages, side by side."""

    kind: Literal["samples"]
    name: str
    models: list[str] = Field(min_length=1)
    """Names of earlier stages."""
    prompts: list[str] = Field(min_length=1)
    max_tokens: int = Field(64, ge=1)
    temperature: float = Field(0.7, ge=0)


class ReportStep(Section):
    """`report.md`, plots and `report.json` from what earlier stages recorded."""

    kind: Literal["report"]
    name: str


PipelineStep = Annotated[
    TokenizerStep | PretrainStep | ExtractStep | SamplesStep | ReportStep,
    Field(discriminator="kind"),
]


class PipelineConfig(Section):
    """A chain of stages in one run folder, `<output_dir>/<stage name>` each."""

    stage: Literal["pipeline"]
    run: RunConfig
    data: DataConfig
    monitor: MonitorConfig = MonitorConfig()
    stages: list[PipelineStep] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        seen: list[str] = []
        for step in self.stages:
            if step.name in seen:
                raise ValueError(f"two stages are named {step.name!r}")
            wanted = getattr(step, "models", None) or [getattr(step, "init_from", None)]
            for name in wanted:
                if name is not None and name not in seen:
                    raise ValueError(
                        f"stage {step.name!r} needs {name!r}, which is not an earlier stage "
                        f"(earlier: {', '.join(seen) or 'none'})"
                    )
            seen.append(step.name)
        return self


StageConfig = PretrainConfig | ExtractConfig | PipelineConfig

STAGES: dict[str, type[StageConfig]] = {
    "pretrain": PretrainConfig,
    "extract": ExtractConfig,
    "pipeline": PipelineConfig,
}
