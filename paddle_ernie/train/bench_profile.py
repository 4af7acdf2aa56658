"""Where a training step's time goes, operator by operator. `tools/bench.py train --profile`.

    forward ... backward ... update        phases of Stepper.train_step
       |           |           |
       +-- compiled operators, Paddle's own operators, Python bodies of ours

Every clock is exclusive: while an operator runs, the phase (or the Python body) that called it
stands still, so the rows add up to the step. What no clock inside a phase covers is its `rest`:
Paddle's autograd engine, Tensor methods, and in the backward pass Paddle's own gradients.
"""

import importlib
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest import mock

import paddle
from paddle.autograd import PyLayer
from paddle.base import core

import paddle_ernie.ops
from paddle_ernie.data.types import Batch
from paddle_ernie.train.step import Stepper

REST = "rest"
LEARNING_RATE = 1e-4


@dataclass
class Clock:
    """What one name took."""

    calls: int = 0
    seconds: float = 0.0


@dataclass
class Clocks:
    """Exclusive clocks by (phase, name)."""

    clocks: dict[tuple[str, str], Clock] = field(default_factory=dict)
    shapes: bool = False
    """Operators are told apart by the shapes of their tensors as well."""
    _running: list[tuple[str, str]] = field(default_factory=list)
    _since: float = 0.0

    @contextmanager
    def running(self, name: str, phase: str | None = None) -> Iterator[None]:
        """Stop the clock that runs, run this one, go on with the one before."""
        self._switch()
        key = (phase or self._running[-1][0], name)
        self._running.append(key)
        self.clocks.setdefault(key, Clock()).calls += 1
        try:
            yield
        finally:
            self._switch()
            self._running.pop()

    def phase(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        """`function` as a phase, whose own time is its rest."""

        def timed(*arguments: Any, **keywords: Any) -> Any:
            with self.running(REST, phase):
                return function(*arguments, **keywords)

        return timed

    def operator(self, function: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
        """`function` under the clock `name`; None: its first argument is the name."""

        def timed(*arguments: Any, **keywords: Any) -> Any:
            if not self._running:  # outside the steps
                return function(*arguments, **keywords)
            own = name or arguments[0]
            with self.running(f"{own} {_shapes(arguments)}" if self.shapes else own):
                return function(*arguments, **keywords)

        return timed

    def _switch(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.clocks[self._running[-1]].seconds += now - self._since
        self._since = now


def _shapes(arguments: Sequence[Any]) -> str:
    tensors = [value for value in arguments if isinstance(value, paddle.Tensor)]
    return " ".join("x".join(map(str, value.shape)) for value in tensors)


@dataclass(frozen=True)
class ProfileRow:
    """One line of the table."""

    phase: str
    name: str
    calls: int
    seconds: float
    share: float
    """Of the step."""


def profile_steps(
    stepper: Stepper, batch: Batch, *, steps: int, warmup: int, shapes: bool = False
) -> list[ProfileRow]:
    """The clocks of the fastest of `steps` training steps, the largest first."""
    for _ in range(warmup):
        stepper.train_step(batch, LEARNING_RATE)
    clocks, taken = Clocks(shapes=shapes), []
    with _timed(clocks):
        for _ in range(steps):
            clocks.clocks = {}
            with clocks.running(REST, "step"):
                stepper.train_step(batch, LEARNING_RATE)
            taken.append(clocks.clocks)
    fastest, total = min(((found, _total(found)) for found in taken), key=lambda pair: pair[1])
    rows = [
        ProfileRow(*key, clock.calls, clock.seconds, clock.seconds / total)
        for key, clock in fastest.items()
    ]
    return sorted(rows, key=lambda row: -row.seconds)


def _total(clocks: Mapping[tuple[str, str], Clock]) -> float:
    return sum(clock.seconds for clock in clocks.values())


@contextmanager
def _timed(clocks: Clocks) -> Iterator[None]:
    """While open, operators and phases run under clocks."""
    with ExitStack() as stack:

        def patch(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        patch(core.eager, "_run_custom_op", clocks.operator(core.eager._run_custom_op))
        for name, function in _paddle_operators().items():
            patch(paddle._C_ops, name, clocks.operator(function, f"paddle {name}"))
        for layer in _our_layers():
            for part in ("forward", "backward"):
                body = clocks.operator(getattr(layer, part), f"Python {layer.__name__}.{part}")
                patch(layer, part, staticmethod(body))
        patch(Stepper, "_forward", clocks.phase(Stepper._forward, "forward"))
        patch(paddle.Tensor, "backward", clocks.phase(paddle.Tensor.backward, "backward"))
        patch(Stepper, "_update", clocks.phase(Stepper._update, "update"))
        yield


def _paddle_operators() -> dict[str, Callable[..., Any]]:
    """Paddle's operators as its Python functions call them."""
    return {
        name: function
        for name, function in vars(paddle._C_ops).items()
        if callable(function) and not name.startswith("_")
    }


def _our_layers() -> list[type[PyLayer]]:
    """The autograd functions of the operator package."""
    found = []
    for module in _modules(paddle_ernie.ops):
        found += [
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, PyLayer)
            and value.__module__ == module.__name__
        ]
    return found


def _modules(package: ModuleType) -> list[ModuleType]:
    return [
        importlib.import_module(f"{package.__name__}.{info.name}")
        for info in pkgutil.iter_modules(package.__path__)
        if not info.name.startswith("__")
    ]
