"""Measurements of the training path: speed, work of sub-models, checkpoints, memory, loader.

`tools/bench.py train` calls `bench_train` and shows the records it returns; each `bench_*` function
also stands alone. Times are medians over steps after warm-up steps, on random tokens in the shapes
of a configuration, so a figure depends on nothing but the machine and the shapes.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paddle_ernie.config.elastic import SubnetSpec
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.config.train import TrainConfig
from paddle_ernie.data.loader import TrainLoader
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.data.types import IGNORE_LABEL, Batch
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.models.cost import flops_per_token, memory_estimate
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import model_arrays
from paddle_ernie.ops.numerics import PRECISIONS
from paddle_ernie.train.bench_records import (
    CheckpointSpeed,
    LoaderShare,
    MemoryUse,
    StepTime,
    TrainBench,
)
from paddle_ernie.train.checkpoint import Snapshot, write_checkpoint
from paddle_ernie.train.machine import peak_resident_bytes
from paddle_ernie.train.optimizer import AdamW, trainable_parameters
from paddle_ernie.train.step import Stepper

LEARNING_RATE = 1e-4
WARMUP_STEPS = 2  # first steps allocate memory and start threads
SUBNETS: dict[str, SubnetSpec] = {
    "full": SubnetSpec(),
    "top-1": SubnetSpec(top_k=1),
    "half-depth": SubnetSpec(layers=4),
    "half-width": SubnetSpec(experts=8),
    "quarter": SubnetSpec(layers=2, experts=8, top_k=1),
}
"""Fit the default model of `bench_train`: 8 layers, 16 experts."""
BENCH_MODEL = ModelConfig(
    vocab_size=4096,
    hidden_size=192,
    num_hidden_layers=8,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=64,
    intermediate_size=512,
    moe_num_experts=16,
    moe_k=4,
    moe_intermediate_size=128,
)
"""The shapes of configs/quickstart.yaml."""


@dataclass(frozen=True)
class Shapes:
    """What is trained in a measurement."""

    model: ModelConfig = BENCH_MODEL
    rows: int = 16
    seq_len: int = 256
    steps: int = 5
    """Timed steps."""
    documents_per_row: int = 2

    @property
    def train(self) -> TrainConfig:
        """One micro-batch a step."""
        return TrainConfig(max_steps=1000, global_batch_size=self.rows)


def bench_train(
    directory: Path,
    tokenizer: Tokenizer,
    *,
    loader: TrainLoader | None = None,
    shapes: Shapes | None = None,
) -> TrainBench:
    """Every measurement, a few minutes in all. `directory` is on the disk that is measured;
    without a `loader` its share is left out."""
    shapes = shapes or Shapes()
    return TrainBench(
        experts=bench_experts(shapes),
        subnets=bench_subnets(shapes, SUBNETS),
        checkpoint=bench_checkpoint(directory, shapes.model, tokenizer),
        memory=[bench_memory("default", shapes)],
        loader=bench_loader(loader, shapes) if loader is not None else None,
    )


def bench_experts(shapes: Shapes, counts: Sequence[int] = (8, 16, 32, 64)) -> list[StepTime]:
    """Steps of models that differ in the number of experts only: active work is the same."""
    kinds = {}
    for count in counts:
        model = shapes.model.model_copy(update={"moe_num_experts": count})
        kinds[f"{count} experts"] = (time_steps(model, shapes), _flops(model, shapes, None))
    return _step_times(kinds, shapes)


def bench_subnets(shapes: Shapes, specs: Mapping[str, SubnetSpec]) -> list[StepTime]:
    """Steps in which every row runs one sub-model; the first spec is what others relate to."""
    kinds = {}
    for name, spec in specs.items():
        subnet = Subnet.from_spec(spec, shapes.model)
        kinds[name] = (
            time_steps(shapes.model, shapes, subnet),
            _flops(shapes.model, shapes, subnet),
        )
    return _step_times(kinds, shapes)


def bench_checkpoint(
    directory: Path, model: ModelConfig, tokenizer: Tokenizer, repeats: int = 3
) -> CheckpointSpeed:
    """A checkpoint of `model` with random moments; best of `repeats` for the disk and for us."""
    network = ErnieMoeModel(model)
    started = time.perf_counter()
    weights = {name: np.array(array) for name, array in model_arrays(network).items()}
    moments = {
        f"{name}.{moment}": np.array(array)
        for name, array in weights.items()
        for moment in ("moment1", "moment2")
    }
    stall = time.perf_counter() - started
    snapshot = Snapshot(1, weights, moments, {"step": 1})
    path = directory / "step-00000001"
    writes, disk = [], []
    for _ in range(repeats):
        disk.append(_time(lambda: _write_raw(directory / "raw", snapshot.nbytes)))
        (directory / "raw").unlink()
        writes.append(_time(lambda: write_checkpoint(path, snapshot, model, tokenizer)))
        shutil.rmtree(path)
    return CheckpointSpeed(snapshot.nbytes / 1e6, stall, min(writes), min(disk))


def bench_memory(name: str, shapes: Shapes) -> MemoryUse:
    """Peak of a process that trains these shapes and copies its state once."""
    program = (
        "import sys, json; from paddle_ernie.train.bench import memory_process; "
        "memory_process(sys.argv[1])"
    )
    request = {
        "model": shapes.model.model_dump(),
        "rows": shapes.rows,
        "seq_len": shapes.seq_len,
        "steps": shapes.steps,
    }
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(request)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    predicted = memory_estimate(shapes.model, shapes.train, shapes.seq_len).total
    return MemoryUse(name, float(done.stdout.split()[-1]), predicted)


def memory_process(request: str) -> None:
    """Body of the process that `bench_memory` starts: its last word on stdout is the peak."""
    values = json.loads(request)
    shapes = Shapes(**{**values, "model": ModelConfig(**values["model"])})
    stepper = make_stepper(shapes.model, shapes)
    batch = random_batch(shapes)
    for _ in range(WARMUP_STEPS + shapes.steps):
        stepper.train_step(batch, LEARNING_RATE)
    copies = [np.array(array) for array in model_arrays(stepper.model).values()]
    copies += [np.array(array) for array in stepper.optimizer.state().values()]
    stepper.train_step(batch, LEARNING_RATE)
    sys.stdout.write(f"{peak_resident_bytes()}\n")


def bench_loader(loader: TrainLoader, shapes: Shapes, batches: int = 50) -> LoaderShare:
    """Time of a global batch beside time of a step of the same shapes."""
    loader.next_batch()
    started = time.perf_counter()
    for _ in range(batches):
        loader.next_batch()
    seconds = (time.perf_counter() - started) / batches
    return LoaderShare(seconds, time_steps(shapes.model, shapes))


def time_steps(model: ModelConfig, shapes: Shapes, subnet: Subnet | None = None) -> float:
    """Median seconds of a training step; every row runs `subnet`, or the full model."""
    stepper = make_stepper(model, shapes, subnet)
    return statistics.median(step_seconds(stepper, random_batch(shapes), shapes.steps))


def step_seconds(stepper: Stepper, batch: Batch, steps: int) -> list[float]:
    """Seconds of each of `steps` steps, after some that are not counted."""
    for _ in range(WARMUP_STEPS):
        stepper.train_step(batch, LEARNING_RATE)
    return [_time(lambda: stepper.train_step(batch, LEARNING_RATE)) for _ in range(steps)]


def make_stepper(
    model: ModelConfig, shapes: Shapes, subnet: Subnet | None = None, format_name: str = "fp32"
) -> Stepper:
    """A new model and optimizer; `subnet` instead of sampled ones."""
    network = make_network(model, format_name)
    optimizer = AdamW(trainable_parameters(network), shapes.train)
    return Stepper(network, optimizer, shapes.train, seed=0, space=None, subnet=subnet)


def make_network(model: ModelConfig, format_name: str) -> ErnieMoeModel:
    """A new model whose products run in fp32, bf16 or fp8."""
    network = ErnieMoeModel(model)
    network.recipe = PRECISIONS[format_name]
    return network


def random_batch(shapes: Shapes, seed: int = 0) -> Batch:
    """Rows of random tokens."""
    rng = np.random.default_rng(seed)
    B, S = shapes.rows, shapes.seq_len
    vocab = shapes.model.vocab_size
    assert vocab is not None, "a benchmark model has a vocab_size"
    input_ids_BS = rng.integers(0, vocab, (B, S), np.int64)
    length = -(-S // shapes.documents_per_row)
    doc_ids_BS = np.tile(np.arange(S, dtype=np.int32) // length, (B, 1))
    labels_BS = np.roll(input_ids_BS, -1, axis=1)
    labels_BS[:, length - 1 :: length] = IGNORE_LABEL
    labels_BS[:, -1] = IGNORE_LABEL
    position_ids_BS = np.tile(np.arange(S, dtype=np.int64) % length, (B, 1))
    return Batch(input_ids_BS, labels_BS, doc_ids_BS, position_ids_BS, np.arange(B, dtype=np.int64))


def _step_times(kinds: Mapping[str, tuple[float, float]], shapes: Shapes) -> list[StepTime]:
    first_seconds, first_flops = next(iter(kinds.values()))
    tokens = shapes.rows * shapes.seq_len
    return [
        StepTime(
            name=name,
            seconds=seconds,
            seconds_relative=seconds / first_seconds,
            flops_relative=flops / first_flops,
            gflops=flops * tokens / seconds / 1e9,
            tokens_per_s=tokens / seconds,
        )
        for name, (seconds, flops) in kinds.items()
    ]


def _flops(model: ModelConfig, shapes: Shapes, subnet: Subnet | None) -> float:
    sizes = subnet.sizes() if subnet is not None else None
    return flops_per_token(model, shapes.seq_len, backward=True, sizes=sizes)


def _time(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _write_raw(path: Path, nbytes: int) -> None:
    """What `dd bs=4M conv=fsync` does, with bytes that do not compress."""
    block = np.random.default_rng(0).bytes(1 << 22)
    with path.open("wb", buffering=0) as stream:
        for _ in range(nbytes // len(block)):
            stream.write(block)
        stream.write(block[: nbytes % len(block)])
        os.fsync(stream.fileno())
