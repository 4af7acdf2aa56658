"""Text generation, token by token, with a key-value cache. Called by tools, samples and tests."""

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import paddle

from paddle_ernie.models.cache import KVCache
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.plan import ExpertGroup, ForwardPlan, LayerPlan, full_plan
from paddle_ernie.ops.arrays import view
from paddle_ernie.utils.errors import InputError


def generate(
    model: ErnieMoeModel,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    stop_ids: Collection[int] = (),
    plan_top_k: int | None = None,
    plan: ForwardPlan | None = None,
    num_ids: int | None = None,
) -> Iterator[int]:
    """Yield new ids up to a stop id (not yielded), `max_new_tokens`, or the longest sequence.

    Temperature 0 takes the most likely token. Otherwise tokens are drawn from the `top_k` most
    likely (0: all), and of those from the fewest that hold `top_p` of the probability.
    `plan` (of one row) runs a sub-model; `plan_top_k` sets the experts per token in every layer.
    Only ids below `num_ids` are produced: a padded vocabulary has more than the tokenizer knows.
    The longest sequence is the model's max_position_embeddings.
    """
    _check_sampling(temperature, top_k, top_p)
    limit = model.config.max_position_embeddings
    if not 0 < len(prompt_ids) <= limit:
        raise InputError(
            f"the prompt has {len(prompt_ids)} tokens; expected 1 to max_position_embeddings, "
            f"which is {limit}"
        )
    length = min(len(prompt_ids) + max_new_tokens, limit)
    if plan_top_k is not None:
        plan = _with_top_k(plan, plan_top_k, model)
    rng = np.random.Generator(np.random.Philox(key=[seed, 0]))
    step = _Decoder(model, plan, length)

    def produce() -> Iterator[int]:
        ids = list(prompt_ids)
        for _ in range(length - len(prompt_ids)):
            token = sample(step(ids)[:num_ids], temperature, top_k, top_p, rng)
            if token in stop_ids:
                return
            yield token
            ids = [token]

    return produce()


def sample(
    logits_V: np.ndarray, temperature: float, top_k: int, top_p: float, rng: np.random.Generator
) -> int:
    """Draw one id; see `generate`."""
    if temperature == 0:
        return int(logits_V.argmax())
    order = np.argsort(-logits_V, kind="stable")[: top_k or None]
    scores = logits_V[order].astype(np.float64)
    with np.errstate(over="ignore"):  # a tiny temperature makes all but the best -inf: greedy
        probabilities = np.exp((scores - scores[0]) / temperature)
    cumulative = np.cumsum(probabilities / probabilities.sum())
    kept = int(np.searchsorted(cumulative, top_p)) + 1  # the one that reaches top_p is kept
    cumulative = cumulative[:kept]
    drawn = np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")
    return int(order[min(drawn, len(cumulative) - 1)])


class _Decoder:
    """Next-token logits of one sequence that grows."""

    def __init__(self, model: ErnieMoeModel, plan: ForwardPlan | None, capacity: int) -> None:
        self._model = model
        self._plan = plan
        self._numerics = model.numerics()  # weights do not change while a text is written
        self._cache = KVCache(model.config.num_hidden_layers, capacity)

    def __call__(self, new_ids: list[int]) -> np.ndarray:
        # Not around the generator's yields: the caller's code would run without gradients.
        with paddle.no_grad():
            logits = self._model.logits(
                np.array([new_ids], np.int64),
                plan=self._plan,
                cache=self._cache,
                last_only=True,
                numerics=self._numerics,
            )
        return view(logits)[0, 0]


def _check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    for name, value, valid, expected in (
        ("temperature", temperature, 0 <= temperature < np.inf, "0 or more"),
        ("top_k", top_k, top_k >= 0, "0 (all tokens) or more"),
        ("top_p", top_p, 0 < top_p <= 1, "more than 0 and at most 1"),
    ):
        if not valid:
            raise InputError(f"{name} is {value}; expected {expected}")


def _with_top_k(plan: ForwardPlan | None, top_k: int, model: ErnieMoeModel) -> ForwardPlan:
    """The plan (None: full, one row) with another number of experts per token."""
    config = model.config
    plan = plan or full_plan(1, config.num_hidden_layers, config.moe_k)

    def change(group: ExpertGroup) -> ExpertGroup:
        pool = config.moe_num_experts if group.experts is None else len(group.experts)
        if config.moe_num_experts and not 1 <= top_k <= pool:
            raise InputError(f"{top_k} experts per token; expected 1 to {pool}, the size of a pool")
        return ExpertGroup(group.rows, group.experts, top_k)

    layers = tuple(LayerPlan(tuple(map(change, layer.groups))) for layer in plan.layers)
    return ForwardPlan(plan.num_rows, layers)
