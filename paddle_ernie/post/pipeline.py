"""The pipeline: stages by name in one run folder, each skipped when it is already done.

    <output_dir>/
      cache/            tokenised text, shared by every stage
      <stage>/          one folder a stage: its checkpoints, metrics, `model/`, `summary.json`
      <stage>/stage.json  running or done, and the fingerprint of all that the result depends on

    fingerprint(stage) = hash(step, data, seed, fingerprints of the stages it starts from)
    stage.json:  same fingerprint, done     ->  skip, if its files and its models are what they were
                 same fingerprint, running  ->  go on from the newest checkpoint
                 another, or no stage.json  ->  forget what the stage left, and start it over
Called by `launch` for `stage: pipeline`. A stage that is interrupted goes on where it stopped. One
whose model was damaged or deleted makes it again, from its last checkpoint if that is whole; one
that starts from a model with other bytes than before runs again.
"""

import hashlib
import json
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paddle_ernie.config.stages import (
    MODEL_KINDS,
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
from paddle_ernie.models.model_dir import verify_model_dir
from paddle_ernie.train.run_folder import RunFolder
from paddle_ernie.utils.errors import CheckpointError, InputError, Interrupted
from paddle_ernie.utils.files import sha256, write_json
from paddle_ernie.utils.manifest import MANIFEST_FILE
from paddle_ernie.utils.options import RunOptions

logger = logging.getLogger(__name__)

STATE_FILE = "stage.json"


@dataclass(frozen=True)
class StageFolder:
    """Where one stage of a run lives, and what tells whether its result is current."""

    step: PipelineStep
    path: Path
    fingerprint: str
    parents: tuple["StageFolder", ...] = ()
    """The earlier stages whose results this one reads."""

    @property
    def model(self) -> Path | None:
        """Model directory that the stage leaves, if its kind leaves one."""
        return self.path / "model" if self.step.kind in MODEL_KINDS else None

    def recorded(self) -> dict[str, Any]:
        """What stage.json says; empty when the stage never started."""
        file = self.path / STATE_FILE
        try:
            return dict(json.loads(file.read_text()))
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError) as error:
            raise CheckpointError(
                f"{file}: not the record of a stage ({error}); delete it to run stage "
                f"{self.step.name} from its start"
            ) from error

    @property
    def is_done(self) -> bool:
        """The stage finished with exactly the present configuration, and its result stands."""
        state = self.recorded()
        return (
            state.get("done") is True
            and state.get("fingerprint") == self.fingerprint
            and all(file.is_file() for file in self._results())
            and self._has_whole_model()
            and state.get("models") == self._models()
        )

    def prepare(self) -> None:
        """Mark the stage as running; what another configuration left in its folder goes first.

        In this order, so that a kill between the two cannot make old checkpoints look current.
        """
        recorded = self.recorded().get("fingerprint")
        if recorded != self.fingerprint:
            if recorded is not None:
                logger.warning(
                    "stage %s: what it depends on changed, it starts over", self.step.name
                )
            RunFolder(self.path).clear()
        self.record(done=False)

    def record(self, *, done: bool, seconds: float = 0.0) -> None:
        """Write stage.json."""
        state = {"fingerprint": self.fingerprint, "done": done, "seconds": seconds}
        if done:
            state["models"] = self._models()
        write_json(self.path / STATE_FILE, state)

    def forget(self) -> None:
        """Drop stage.json: whatever the folder holds is not to be gone on from."""
        (self.path / STATE_FILE).unlink(missing_ok=True)

    def _results(self) -> tuple[Path, ...]:
        match self.step:
            case SamplesStep():
                return (self.path / "samples.json",)
            case ReportStep():
                return self.path.parent / "report.md", self.path.parent / "report.json"
            case _:
                return (self.path / "summary.json",)

    def _has_whole_model(self) -> bool:
        if self.model is None:
            return True
        try:
            verify_model_dir(self.model)
        except CheckpointError as error:
            logger.warning("stage %s runs again: %s", self.step.name, error)
            return False
        return True

    def _models(self) -> dict[str, str]:
        """Stage name -> SHA-256 of the manifest of the model it made: own and parents'."""
        return {
            folder.step.name: sha256(folder.model / MANIFEST_FILE)
            for folder in (self, *self.parents)
            if folder.model is not None and (folder.model / MANIFEST_FILE).is_file()
        }


def run_pipeline(config: PipelineConfig, options: RunOptions) -> None:
    """Run every stage that is not done, in order. One process at a time may do so in a folder.

    Raises InputError for a resume path (stages have their own checkpoints), Interrupted when a stop
    was asked for; errors of a stage pass through.
    """
    if options.resume not in ("auto", "never"):
        raise InputError(
            f"--resume {options.resume}: a pipeline resumes each stage from its own checkpoints; "
            "use --resume auto or --resume never"
        )
    folders = stage_folders(config)
    with RunFolder(config.run.output_dir).lock():
        if options.resume == "never":
            # All of them now: a run that is stopped half-way must not end with old stages.
            for folder in folders.values():
                folder.forget()
        for number, folder in enumerate(folders.values(), start=1):
            title = f"stage {number}/{len(folders)}: {folder.step.name}"
            if folder.is_done:
                options.console.print(f"[bold]{title}[/bold] is done, skipped")
                continue
            if options.stop:
                raise Interrupted(f"stopped before {title} ({options.stop.reason})")
            options.console.rule(f"[bold]{title}[/bold] ({folder.step.kind})")
            started = time.monotonic()
            folder.prepare()
            run_stage(config, folder, folders, replace(options, resume="auto"))
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

            write_samples(
                step,
                folder.path,
                _model_dirs(folder),
                config.run.seed,
                options,
                config.precision,
            )
        case ReportStep():
            _run_report(config, folder, options)


def stage_folders(config: PipelineConfig) -> dict[str, StageFolder]:
    """Every stage's folder and fingerprint, by name, in order."""
    common = {
        "data": config.data.model_dump(mode="json", exclude={"cache_dir", "num_workers"}),
        "precision": config.precision.model_dump(mode="json"),
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
        path = config.run.output_dir / step.name
        folders[step.name] = StageFolder(step, path, _hash(described), tuple(parents))
    return folders


def pretrain_config(
    config: PipelineConfig, step: PretrainStep, folders: dict[str, StageFolder]
) -> PretrainConfig:
    """The stand-alone configuration that a pretrain step amounts to."""
    return PretrainConfig(
        stage="pretrain",
        run=_stage_run(config, folders[step.name]),
        model=step.model,
        init_from=folders[step.init_from].model if step.init_from else None,
        data=_stage_data(config),
        train=step.train,
        precision=config.precision,
        elastic=step.elastic,
        checkpoint=step.checkpoint,
        eval=step.eval,
        monitor=config.monitor,
    )


def extract_config(
    config: PipelineConfig, step: ExtractStep, folders: dict[str, StageFolder]
) -> ExtractConfig:
    """The stand-alone configuration that an extract step amounts to."""
    parent = folders[step.init_from].model
    assert parent is not None, "the schema wants init_from to leave a model"
    return ExtractConfig(
        stage="extract",
        run=_stage_run(config, folders[step.name]),
        init_from=parent,
        data=_stage_data(config),
        precision=config.precision,
        extract=step.extract,
    )


def cache_dir(config: PipelineConfig) -> Path:
    """Where the pipeline's tokenised text lives: one place for all its stages."""
    return config.data.cache_dir or config.run.output_dir / "cache"


def _run_tokenizer(config: PipelineConfig, folder: StageFolder, options: RunOptions) -> None:
    from paddle_ernie.post.text import prepare_text

    prepare_text(config.data, cache_dir(config), folder.path, options)


def _run_report(config: PipelineConfig, folder: StageFolder, options: RunOptions) -> None:
    from paddle_ernie.post.report import write_pipeline_report

    write_pipeline_report(config.run.output_dir, [*folder.parents, folder], options.console)


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


def _model_dirs(folder: StageFolder) -> dict[str, Path]:
    """Stage name -> model, of the stages that `folder` starts from, in the order it names them."""
    return {parent.step.name: parent.model for parent in folder.parents if parent.model}


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
