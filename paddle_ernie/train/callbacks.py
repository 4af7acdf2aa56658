"""What happens after a step: log a record, evaluate and write samples, save a checkpoint.

Each class is a callable that `TrainLoop` calls with a StepEvent; `run_pretrain` lists them in the
order log, evaluate, save, so a checkpoint never claims a step whose records are not on disk.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from paddle_ernie.config.stages import PretrainConfig
from paddle_ernie.data.corpus import Corpus
from paddle_ernie.data.loader import valid_batch
from paddle_ernie.data.types import Batch
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.monitor.records import MetricRecord
from paddle_ernie.monitor.writer import Monitor
from paddle_ernie.train.arrays import host_view
from paddle_ernie.train.checkpoint import Snapshot
from paddle_ernie.train.checkpoint_writer import CheckpointWriter
from paddle_ernie.train.continuation import continue_text
from paddle_ernie.train.evaluate import EvalResult, evaluate
from paddle_ernie.train.loop import StepEvent, Stopwatch, TrainState
from paddle_ernie.train.machine import (
    measure_peak_gflops,
    peak_resident_bytes,
    resident_bytes,
)
from paddle_ernie.train.window import MetricWindow

logger = logging.getLogger(__name__)


@dataclass
class LogMetrics:
    """Writes one record every `logging_steps`."""

    config: PretrainConfig
    model: ErnieMoeModel
    token_bytes: np.ndarray
    monitor: Monitor
    stopwatch: Stopwatch
    window: MetricWindow
    """Replaced by a new one after each record."""
    steps: int = 0
    """Since the last record of this process, as are tokens and flops: what speed is measured over.
    The window may have begun in an earlier process."""
    tokens: int = 0
    flops: float = 0.0
    checkpoint_seconds: float = 0.0
    """How long the last checkpoint kept training waiting."""

    def __call__(self, event: StepEvent) -> None:
        self.window.add(event, self.token_bytes)
        self.steps += 1
        self.tokens += event.result.tokens
        self.flops += event.result.flops
        if not event.is_due(self.config.monitor.logging_steps):
            return
        scalars = self.window.scalars() | self._progress(event) | self._speed() | _memory()
        histograms = self.window.histograms() if self.config.monitor.histograms else {}
        self.monitor.write(MetricRecord(event.state.step, scalars, histograms))
        self.window, self.steps, self.tokens, self.flops = MetricWindow(), 0, 0, 0.0

    @cached_property
    def _peak_gflops(self) -> float:
        given = self.config.monitor.peak_gflops
        return measure_peak_gflops() if given is None else given

    def _progress(self, event: StepEvent) -> dict[str, float]:
        biases = self.model.correction_biases().values()
        squares = sum(float(np.square(host_view(bias)).sum()) for bias in biases)
        return {
            "train/lr": event.result.learning_rate,
            "train/tokens": float(event.state.tokens),
            "train/skipped_steps": float(event.state.skipped_steps),
            "moe/bias_norm": math.sqrt(squares),
        }

    def _speed(self) -> dict[str, float]:
        """Training only: loader and steps, without evaluation and checkpoints."""
        seconds = self.stopwatch.take()
        data = seconds.get("data", 0.0)
        busy = max(data + seconds.get("step", 0.0), 1e-9)
        self.checkpoint_seconds = seconds.get("checkpoint", self.checkpoint_seconds)
        return {
            "throughput/tokens_per_s": self.tokens / busy,
            "throughput/flop_utilisation": self.flops / busy / 1e9 / self._peak_gflops,
            "throughput/data_share": data / busy,
            "time/step_s": busy / self.steps,
            "time/data_s": data / self.steps,
            "time/checkpoint_s": self.checkpoint_seconds,
        }


@dataclass
class Evaluate:
    """Validation losses and text samples every `eval_steps`, with more rows after the last step."""

    config: PretrainConfig
    model: ErnieMoeModel
    corpus: Corpus
    token_bytes: np.ndarray
    monitor: Monitor
    stopwatch: Stopwatch
    subnets: Mapping[str, Subnet]
    results: dict[str, EvalResult] = field(default_factory=dict)
    """Of the last evaluation."""

    def __call__(self, event: StepEvent) -> None:
        if not event.is_due(self.config.eval.eval_steps):
            return
        settings = self.config.eval
        rows = settings.final_eval_rows if event.is_last else settings.eval_rows
        with self.stopwatch.measure("eval"):
            self.results = self.run(rows)
            texts = self._samples()
        self.monitor.write(MetricRecord(event.state.step, eval_scalars(self.results), texts=texts))

    def run(self, rows: int) -> dict[str, EvalResult]:
        """Evaluate on the first `rows` validation rows, always the same ones."""
        return evaluate(
            self.model,
            self.batch(rows),
            self.subnets,
            token_bytes=self.token_bytes,
            micro_rows=self.config.train.micro_rows,
        )

    def batch(self, rows: int) -> Batch:
        """The validation rows; DataError when there is not even one."""
        return valid_batch(self.corpus, max_seq_len=self.config.data.max_seq_len, rows=rows)

    def _samples(self) -> dict[str, str]:
        settings, tokenizer = self.config.monitor, self.corpus.tokenizer
        return {
            f"samples/{number}": prompt
            + continue_text(self.model, tokenizer, prompt, max_tokens=settings.sample_tokens)
            for number, prompt in enumerate(settings.sample_prompts)
        }


@dataclass
class SaveCheckpoints:
    """Hands a snapshot to the writer every `save_steps` and after the last step."""

    every: int
    writer: CheckpointWriter
    stopwatch: Stopwatch
    state: TrainState
    snapshot: Callable[[], Snapshot]
    """Copies the run's state."""
    saved_step: int = 0
    """Step of the newest checkpoint; at step 0 there is nothing to save."""

    def __call__(self, event: StepEvent) -> None:
        self.writer.check()
        if event.is_due(self.every):
            self.save()

    def save(self) -> None:
        """Copy now, write in the background."""
        if self.state.step == self.saved_step:
            return
        with self.stopwatch.measure("checkpoint"):
            self.writer.wait()  # before copying: memory holds one snapshot, not two
            self.writer.save(self.snapshot())
            self.saved_step = self.state.step

    def save_and_wait(self) -> None:
        """Copy, write, and return when it is on disk."""
        started = time.perf_counter()
        self.save()
        self.writer.wait()
        logger.info(
            "checkpoint of step %d on disk after %.2f s",
            self.saved_step,
            time.perf_counter() - started,
        )


def eval_scalars(results: Mapping[str, EvalResult]) -> dict[str, float]:
    """`eval/<name>/{loss,bpb,ppl}` for every model and subnet."""
    return {
        f"eval/{name}/{metric}": value
        for name, result in results.items()
        for metric, value in (
            ("loss", result.loss),
            ("bpb", result.bits_per_byte),
            ("ppl", result.perplexity),
        )
    }


def _memory() -> dict[str, float]:
    return {
        "memory/rss_bytes": float(resident_bytes()),
        "memory/peak_bytes": float(peak_resident_bytes()),
    }
