"""The pipeline: stages by name in one run folder, each skipped when it is already done.

    <output_dir>/
      cache/            tokenised text, shared by every stage
      <stage>/          one folder a stage: its checkpoints, metrics, `model/`, `summary.json`
      <stage>/stage.json  running or done, and the fingerprint of all that the result depends on

    fingerprint(stage) = hash(step, data, seed, fingerprints of the stages it starts from)
    stage.json:  same fingerprint, done     ->  skip
                 same fingerprint, running  ->  go on from the newest checkpoint
                 another fingerprint        ->  something it depends on changed: run it again
Called by `launch` for `stage: pipeline`. A stage that is interrupted goes on where it stopped.
"""

import hashlib
import json
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paddle_ernie.config.stages import (
    ExtractConfig,
    ExtractStep,
    PipelineConfig,
    PipelineStep,
    PretrainConfig,
    PretrainStep,
    ReportStep,
    SamplesStep,
    TokenizerStep,
)
from paddle_ernie.utils.errors import InputError, Interrupted
from paddle_ernie.utils.files import write_json
from paddle_ernie.utils.options import RunOptions

logger = logging.getLogger(__name__)

STATE_FILE = "stage.json"


@dataclass(frozen=True)
class StageFolder:
    """Where one stage of a run lives, and what tells whether its result is current."""

    step: PipelineStep
    path: Path
    fingerprint: str

    def recorded(self) -> dict[str, Any]:
        """What stage.json says; empty when the stage never started."""
        try:
            return dict(json.loads((self.path / STATE_FILE).read_text()))
        except FileNotFoundError:
            return {}

    @property
    def is_done(self) -> bool:
        """The stage finished with exactly the present configuration."""
        state = self.recorded()
        return bool(state.get("done")) and state["fingerprint"] == self.fingerprint

    def record(self, *, done: bool, seconds: float = 0.0) -> None:
        """Write stage.json."""
        state = {"fingerprint": self.fingerprint, "done": done, "seconds": seconds}
        write_json(self.path / STATE_FILE, state)


def run_pipeline(config: PipelineConfig, options: RunOptions) -> None:
    """Run every stage that is not done, in order.

    Raises InputError for a resume path (stages have their own checkpoints), Interrupted when a stop
    was asked for; errors of a stage pass through.
    """
    if options.resume not in ("auto", "never"):
        raise InputError(
            f"--resume {options.resume}: a pipeline resumes each stage from its own checkpoints; "
            "use --resume auto or --resume never"
        )
    folders = stage_folders(config)
    for number, folder in enumerate(folders.values(), start=1):
        title = f"stage {number}/{len(folders)}: {folder.step.name}"
        if options.resume == "auto" and folder.is_done:
            options.console.print(f"[bold]{title}[/bold] is done, skipped")
            continue
        if options.stop:
            raise Interrupted(f"stopped before {title} ({options.stop.reason})")
        options.console.rule(f"[bold]{title}[/bold] ({folder.step.kind})")
        stage_options = _stage_options(folder, options)
        started = time.monotonic()
        folder.record(done=False)
        run_stage(config, folder, folders, stage_options)
        folder.record(done=True, seconds=time.monotonic() - started)


def run_stage(
    config: PipelineConfig,
    folder: StageFolder,
    folders: dict[str, StageFolder],
    options: RunOptions,
) -> None:
    """Run one stage in its folder."""
    match folder.step:
        case TokenizerStep():
            _run_tokenizer(config, folder, options)
        case PretrainStep() as step:
            from paddle_ernie.train.pretrain import run_pretrain

            run_pretrain(pretrain_config(config, step, folders), options)
        case ExtractStep() as step:
            from paddle_ernie.train.extract_stage import run_extract

            run_extract(extract_config(config, step, folders), options)
        case SamplesStep() as step:
            from paddle_ernie.post.samples import write_samples

            write_samples(step, folder.path, _model_dirs(step, folders), config.run.seed, options)
        case ReportStep():
            _run_report(config, folders, options)


def stage_folders(config: PipelineConfig) -> dict[str, StageFolder]:
    """Every stage's folder and fingerprint, by name, in order."""
    common = {
        "data": config.data.model_dump(mode="json", exclude={"cache_dir", "num_workers"}),
        "seed": config.run.seed,
    }
    folders: dict[str, StageFolder] = {}
    for step in config.stages:
        parents = _parents(step, folders)
        described = {
            # How often a stage saves does not change what it computes.
            "step": step.model_dump(mode="json", exclude={"checkpoint"}),
            "common": common,
            "parents": [folder.fingerprint for folder in parents],
        }
        folders[step.name] = StageFolder(step, config.run.output_dir / step.name, _hash(described))
    return folders


def pretrain_config(
    config: PipelineConfig, step: PretrainStep, folders: dict[str, StageFolder]
) -> PretrainConfig:
    """The stand-alone configuration that a pretrain step amounts to."""
    return PretrainConfig(
        stage="pretrain",
        run=_stage_run(config, folders[step.name]),
        model=step.model,
        init_from=folders[step.init_from].path / "model" if step.init_from else None,
        data=_stage_data(config),
        train=step.train,
        elastic=step.elastic,
        checkpoint=step.checkpoint,
        eval=step.eval,
        monitor=config.monitor,
    )


def extract_config(
    config: PipelineConfig, step: ExtractStep, folders: dict[str, StageFolder]
) -> ExtractConfig:
    """The stand-alone configuration that an extract step amounts to."""
    return ExtractConfig(
        stage="extract",
        run=_stage_run(config, folders[step.name]),
        init_from=folders[step.init_from].path / "model",
        data=_stage_data(config),
        extract=step.extract,
    )


def cache_dir(config: PipelineConfig) -> Path:
    """Where the pipeline's tokenised text lives: one place for all its stages."""
    return config.data.cache_dir or config.run.output_dir / "cache"


def _run_tokenizer(config: PipelineConfig, folder: StageFolder, options: RunOptions) -> None:
    from paddle_ernie.post.text import prepare_text

    prepare_text(config.data, cache_dir(config), folder.path, options)


def _run_report(
    config: PipelineConfig, folders: dict[str, StageFolder], options: RunOptions
) -> None:
    from paddle_ernie.post.report import write_pipeline_report

    write_pipeline_report(config.run.output_dir, list(folders.values()), options.console)


def _stage_options(folder: StageFolder, options: RunOptions) -> RunOptions:
    """A stage whose inputs changed starts over; one that was cut short goes on."""
    recorded = folder.recorded().get("fingerprint", folder.fingerprint)
    if options.resume == "auto" and recorded != folder.fingerprint:
        logger.warning("stage %s: what it depends on changed, run again", folder.step.name)
        return replace(options, resume="never")
    return options


def _stage_run(config: PipelineConfig, folder: StageFolder) -> Any:
    logs = config.run.logging_dir
    return config.run.model_copy(
        update={
            "output_dir": folder.path,
            "logging_dir": (logs or config.run.output_dir / "visualdl") / folder.step.name,
        }
    )


def _stage_data(config: PipelineConfig) -> Any:
    return config.data.model_copy(update={"cache_dir": cache_dir(config)})


def _model_dirs(step: SamplesStep, folders: dict[str, StageFolder]) -> dict[str, Path]:
    return {name: folders[name].path / "model" for name in step.models}


def _parents(step: PipelineStep, folders: dict[str, StageFolder]) -> list[StageFolder]:
    """The earlier stages whose results this one reads; a report reads all of them."""
    match step:
        case ReportStep():
            return list(folders.values())
        case SamplesStep(models=names):
            return [folders[name] for name in names]
        case PretrainStep(init_from=str(name)) | ExtractStep(init_from=name):
            return [folders[name]]
        case _:
            return []


def _hash(value: Any) -> str:
    canonical = json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
    return hashlib.blake2b(canonical, digest_size=8).hexdigest()
