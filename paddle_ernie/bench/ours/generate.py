"""Our generation of several sequences at once by the serving engine; what its features bring."""

from pathlib import Path
from typing import Any

from paddle_ernie.bench.ours.engines import make_engine, random_prompts, run
from paddle_ernie.bench.rivals.protocol import peak_bytes, summary
from paddle_ernie.bench.rivals.timeline import describe

WARM_TOKENS = 2


def measure_generation(request: dict[str, Any]) -> dict[str, Any]:
    """Times of every token of several repeats, and the tokens of the last."""
    rows, prompt, new = request["rows"], request["prompt"], request["new"]
    engine = make_engine(
        Path(request["model_dir"]), rows, prompt + new, precision=request["mode"]["weights"]
    )
    prompts = random_prompts(request["vocab_size"], rows, prompt)
    run(engine, prompts, WARM_TOKENS)
    runs = [run(engine, prompts, new) for _ in range(request["repeats"])]
    return {
        **describe([timeline for timeline, _ in runs]),
        "peak_bytes": peak_bytes(),
        "tokens": runs[-1][1],
    }


def measure_feature(request: dict[str, Any]) -> dict[str, Any]:
    """Two ways to serve in turns: seconds of each, the ratio of the best, the median of ratios."""
    ways = {name: _Way(request, request[name]) for name in ("first", "second")}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(request["rounds"] + 1):
        for name, way in ways.items():
            taken = way.run(number)
            if number:  # the first round warms
                seconds[name].append(taken)
    found = {name: summary(values) for name, values in seconds.items()}
    ratios = [first / second for first, second in zip(*seconds.values(), strict=True)]
    return {
        **found,
        "ratio": found["first"]["best"] / found["second"]["best"],
        "median_ratio": summary(ratios)["median"],
    }


class _Way:
    """One engine and how its requests are made."""

    def __init__(self, request: dict[str, Any], options: dict[str, Any]) -> None:
        options = dict(options)
        self._hit, self._routes = options.pop("hit", False), options.pop("routes", False)
        self._rows, self._prompt, self._new = request["rows"], request["prompt"], request["new"]
        self._part = request["part"]
        self._engine = make_engine(
            Path(request["model_dir"]), self._rows, self._prompt + self._new, **options
        )

    def run(self, number: int) -> float:
        """Prompts that were seen before, or that nobody has seen."""
        seed = 0 if self._hit else number
        prompts = random_prompts(self._engine.config.vocab_size, self._rows, self._prompt, seed)
        timeline, _ = run(self._engine, prompts, self._new, routes=self._routes)
        return getattr(timeline, self._part)
