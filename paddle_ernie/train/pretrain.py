"""The `pretrain` stage: from a configuration to a trained model directory. Called by `launch`.

    corpus  <- prepare_corpus            tokenised once, memory-mapped
    model   <- new, or init_from         (mid-training: its architecture and tokenizer)
    run     <- loader, optimizer, subnet sampler, monitor, callbacks
    restore <- newest whole checkpoint, or the one asked for
    TrainLoop.run
    <output_dir>/model, summary table, summary.json

A run that has already reached `max_steps` returns at once; with `max_steps` raised it goes on.
"""

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.config.stages import PretrainConfig
from paddle_ernie.data.corpus import Corpus, prepare_corpus
from paddle_ernie.data.loader import TrainLoader
from paddle_ernie.elastic.space import ElasticSpace
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import load_model_dir, save_model_dir, verify_model_dir
from paddle_ernie.monitor.progress import Progress
from paddle_ernie.monitor.writer import Monitor
from paddle_ernie.ops.numerics import Recipe
from paddle_ernie.train.callbacks import Evaluate, LogMetrics, SaveCheckpoints
from paddle_ernie.train.checkpoint_writer import CheckpointWriter
from paddle_ernie.train.evaluate import FULL, bytes_by_id
from paddle_ernie.train.loop import Stopwatch, TrainLoop, TrainState
from paddle_ernie.train.machine import forget_peak
from paddle_ernie.train.optimizer import AdamW, trainable_parameters
from paddle_ernie.train.resume import ResumableParts, collect, find_snapshot, restore
from paddle_ernie.train.run_folder import RunFolder
from paddle_ernie.train.step import Stepper
from paddle_ernie.train.summary import headline, hyper_parameters, summarise, summary_table
from paddle_ernie.train.window import MetricWindow
from paddle_ernie.utils.errors import CheckpointError, InputError
from paddle_ernie.utils.files import write_json
from paddle_ernie.utils.options import RunOptions, StopFlag

logger = logging.getLogger(__name__)

SHOWN_METRICS = ["loss/train", "eval/full/loss", "eval/full/bpb"]
"""What VisualDL shows beside a run's hyper-parameters."""


@dataclass(frozen=True)
class PretrainResult:
    """What a finished run leaves."""

    model_dir: Path
    """The trained model."""
    summary: dict[str, Any]
    """What summary.json holds."""


def run_pretrain(config: PretrainConfig, options: RunOptions) -> PretrainResult:
    """Train to `max_steps`; see the module for the order of things."""
    folder = RunFolder(config.run.output_dir)
    with folder.lock(), ExitStack() as stack:
        if finished := _finished(config, folder, options):
            return finished
        forget_peak()
        progress = Progress(options.console)
        corpus = load_corpus(config, progress, options.stop)
        model = build_model(config, corpus)
        model.recipe = Recipe.of(config.precision)
        run = _Run(config, folder, corpus, model, progress, options, stack)
        if options.resume == "never":
            folder.clear()  # not before everything that can be wrong with the input was found
        run.restore(options.resume)
        run.loop.run()
        return run.finish()


def load_corpus(
    config: PretrainConfig, progress: Progress | None = None, stop: StopFlag | None = None
) -> Corpus:
    """Tokenised text; with `init_from`, by that model's tokenizer."""
    return prepare_corpus(
        config.data,
        cache_dir=config.data.cache_dir or config.run.output_dir / "cache",
        tokenizer_path=config.init_from,
        progress=progress,
        stop=stop,
    )


def build_model(config: PretrainConfig, corpus: Corpus) -> ErnieMoeModel:
    """A new model with seeded weights, or the one in `init_from`."""
    entries = corpus.tokenizer.vocab_size
    if config.init_from is not None:
        model = load_model_dir(config.init_from)
        _check_vocabulary(model.config, entries, f"{config.init_from}/config.json")
        _check_length(config, model.config)
        return model
    assert config.model is not None, "the schema wants `model` or `init_from`"
    architecture = config.model
    if architecture.vocab_size is None:
        architecture = architecture.model_copy(update={"vocab_size": entries})
    _check_vocabulary(architecture, entries, "model.vocab_size")
    return ErnieMoeModel(architecture, seed=config.run.seed)


def _check_vocabulary(model: ModelConfig, entries: int, where: str) -> None:
    assert model.vocab_size is not None
    if model.vocab_size < entries:
        raise InputError(
            f"{where}: vocab_size is {model.vocab_size}, but the tokenizer has {entries} entries; "
            f"the model needs at least as many (null takes the tokenizer's size)"
        )


def _check_length(config: PretrainConfig, model: ModelConfig) -> None:
    """For a `model` section the configuration loader has checked it."""
    if config.data.max_seq_len > model.max_position_embeddings:
        raise InputError(
            f"data.max_seq_len is {config.data.max_seq_len}, but the model of init_from "
            f"{config.init_from} is meant for at most {model.max_position_embeddings} tokens "
            "(max_position_embeddings); lower data.max_seq_len"
        )


def _named_subnets(config: PretrainConfig, model: ModelConfig) -> dict[str, Subnet]:
    """The sub-models of `eval.subnets`."""
    for name in config.eval.subnets:
        if name == FULL or set(name) & set("/%") or not name.strip():
            raise InputError(
                f"eval.subnets.{name}: the name cannot be used; `{FULL}` is the whole model, and "
                "names of metrics are made of it, so it must hold neither / nor %"
            )
    return {name: Subnet.from_spec(spec, model) for name, spec in config.eval.subnets.items()}


def _finished(
    config: PretrainConfig, folder: RunFolder, options: RunOptions
) -> PretrainResult | None:
    """The result of an earlier start that reached `max_steps`."""
    summary = folder.read_summary() or {}
    if options.resume != "auto" or summary.get("steps", 0) < config.train.max_steps:
        return None
    try:
        verify_model_dir(folder.model)
    except CheckpointError as error:
        logger.warning("the finished model is refused and made again: %s", error)
        return None
    options.console.print(
        f"{folder.path} has finished {summary['steps']} steps; nothing to do (raise "
        "train.max_steps to go on, --resume never to start over)",
        soft_wrap=True,
    )
    return PretrainResult(folder.model, summary)


class _Run:
    """The parts of one run, wired together."""

    def __init__(
        self,
        config: PretrainConfig,
        folder: RunFolder,
        corpus: Corpus,
        model: ErnieMoeModel,
        progress: Progress,
        options: RunOptions,
        stack: ExitStack,
    ) -> None:
        self.config, self.folder, self.corpus, self.model = config, folder, corpus, model
        self.console = options.console
        token_bytes = bytes_by_id(corpus, model.config)
        state, stopwatch = TrainState(), Stopwatch()
        self.monitor = stack.enter_context(Monitor(folder.metrics, config.run.visualdl_dir))
        self.writer = CheckpointWriter(
            folder.checkpoints,
            keep=config.checkpoint.keep,
            config=model.config,
            tokenizer=corpus.tokenizer,
        )
        stack.callback(self.writer.close)
        optimizer = AdamW(trainable_parameters(model), config.train)
        loader = make_loader(config, corpus)
        log = LogMetrics(config, model, token_bytes, self.monitor, stopwatch, MetricWindow())
        self.parts = ResumableParts(config, model, optimizer, loader, state, log)
        subnets = _named_subnets(config, model.config)
        self.evaluation = Evaluate(
            config, model, corpus, token_bytes, self.monitor, stopwatch, subnets
        )
        self.evaluation.batch(1)  # too little validation text is an error now, not at step 100
        self.saving = SaveCheckpoints(
            config.checkpoint.save_steps, self.writer, stopwatch, state, lambda: collect(self.parts)
        )
        space = ElasticSpace(config.elastic, model.config) if config.elastic else None
        self.loop = TrainLoop(
            stepper=Stepper(model, optimizer, config.train, seed=config.run.seed, space=space),
            loader=loader,
            train=config.train,
            state=state,
            stopwatch=stopwatch,
            progress=progress,
            stop=options.stop,
            callbacks=(log, self.evaluation, self.saving),
            save=self.saving.save_and_wait,
        )

    def restore(self, resume: str) -> None:
        """Go on from a checkpoint, if there is one and it is wanted."""
        self.monitor.hparams(hyper_parameters(self.config), SHOWN_METRICS)
        self.folder.remove_unfinished()  # before any writer starts
        snapshot = find_snapshot(resume, self.folder.checkpoints)
        if snapshot is None:
            self.monitor.truncate_after(-1)
            return
        restore(self.parts, snapshot, self.folder.checkpoints)
        self.monitor.truncate_after(snapshot.step)
        self.saving.saved_step = snapshot.step
        self.console.print(
            f"resumed after step {snapshot.step} of {self.config.train.max_steps} "
            f"({snapshot.state['progress']['tokens']:,} tokens seen)"
        )

    def finish(self) -> PretrainResult:
        """Write what the run is for: the model, and the figures about it."""
        self.writer.wait()
        results = self.evaluation.results or self.evaluation.run(self.config.eval.final_eval_rows)
        save_model_dir(self.folder.model, self.model, self.model.config, self.corpus.tokenizer_dir)
        summary = summarise(self.config, self.model.config, self.loop.state, results)
        write_json(self.folder.summary, summary)
        self.console.print(headline(summary), soft_wrap=True)
        self.console.print(summary_table(summary).to_rich())
        return PretrainResult(self.folder.model, summary)


def make_loader(config: PretrainConfig, corpus: Corpus) -> TrainLoader:
    """Global batches of packed rows in seeded order."""
    return TrainLoader(
        corpus,
        max_seq_len=config.data.max_seq_len,
        global_batch_size=config.train.global_batch_size,
        seed=config.run.seed,
        weights=corpus.weights,
    )
