"""ElasticSpace: the legal sub-models of a model, and the draw of one for each training row.

Training calls `sample(seed, row_id)` for every row of its data. A draw depends on nothing else, so
a resumed run, another batch split or another rank draws the same sub-model for the same row.

The three axes are drawn independently, each with its own probability of being reduced:

    depth      number of layers uniform in min_layers..L-1, then a uniform subset of that size;
               any layer may drop, dense ones and the last one too
    width      one pool size for the row, then a uniform subset of the experts for each MoE layer
    sparsity   one k for the row, uniform in min_k..K-1

Words of one row's random stream, always at the same place, so that the axes stay independent and
changing one axis's settings leaves the others' draws as they were:

    [coin, size] x 3 axes | L words that order the layers | E words per MoE layer
"""

import numpy as np

from paddle_ernie.config.elastic import ElasticConfig
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.utils.errors import ConfigError

AXES = ("depth", "width", "sparsity")
STREAM = 0x656C61737469  # "elasti": keeps these draws apart from other uses of the run's seed
HEAD_WORDS = 2 * len(AXES)
WORD_SHIFT = 11  # the upper 53 of 64 bits make a uniform double in [0, 1)


class ElasticSpace:
    """What may be sampled from a model, and how often."""

    def __init__(self, elastic: ElasticConfig, model: ModelConfig) -> None:
        """Raise a ConfigError that lists every axis that the model has no room for."""
        self.elastic = elastic
        self.model = model
        self.full = Subnet.full(model)
        faults = [*self._depth_faults(), *self._width_faults(), *self._sparsity_faults()]
        if faults:
            raise ConfigError("elastic does not fit the model:\n  " + "\n  ".join(faults))
        self.pool_sizes = tuple(self._pool_size(fraction) for fraction in elastic.width.fractions)

    def sample(self, seed: int, row_id: int) -> Subnet:
        """The sub-model of row `row_id` of a run seeded with `seed`; about 10 to 100 us."""
        stream = np.random.Philox(
            key=np.array([seed, STREAM], np.uint64),
            counter=np.array([0, 0, row_id, 0], np.uint64),
        )
        coins = _uniform(stream, HEAD_WORDS)
        depth, width, sparsity = self.elastic.depth, self.elastic.width, self.elastic.sparsity
        is_shallow = coins[0] < depth.probability
        is_narrow = coins[2] < width.probability
        is_sparse = coins[4] < sparsity.probability
        if not (is_shallow or is_narrow or is_sparse):
            return self.full
        layers, pools = (
            self.full.layers,
            dict(zip(self.full.layers, self.full.experts, strict=True)),
        )
        if is_shallow or is_narrow:
            order = _uniform(stream, self.model.num_hidden_layers)
            if is_shallow:
                count = _between(coins[1], depth.min_layers, self.model.num_hidden_layers - 1)
                layers = tuple(np.sort(np.argsort(order, kind="stable")[:count]).tolist())
        if is_narrow:
            pools.update(self._draw_pools(stream, coins[3]))
        top_k = self.model.moe_k
        if is_sparse:
            top_k = _between(coins[5], sparsity.min_k, self.model.moe_k - 1)
        experts = tuple(pools[layer] for layer in layers)
        return Subnet(layers, experts, tuple(top_k if pool else 0 for pool in experts))

    def axes(self, subnet: Subnet) -> tuple[str, ...]:
        """Which of depth, width and sparsity are reduced in `subnet`; () for the full model.

        Judged by what is left: width and sparsity of a Subnet without MoE layers are not reduced.
        """
        experts, k = self.model.moe_num_experts, self.model.moe_k
        reduced = (
            len(subnet.layers) < self.model.num_hidden_layers,
            any(0 < len(pool) < experts for pool in subnet.experts),
            any(0 < top_k < k for top_k in subnet.top_k),
        )
        return tuple(axis for axis, is_reduced in zip(AXES, reduced, strict=True) if is_reduced)

    def _draw_pools(
        self, stream: np.random.Philox, size_coin: float
    ) -> list[tuple[int, tuple[int, ...]]]:
        size = self.pool_sizes[_between(size_coin, 0, len(self.pool_sizes) - 1)]
        moe_layers, E = self.model.moe_layers, self.model.moe_num_experts
        keys_LE = _uniform(stream, len(moe_layers) * E).reshape(len(moe_layers), E)
        chosen_LP = np.sort(np.argsort(keys_LE, axis=1, kind="stable")[:, :size], axis=1)
        return list(zip(moe_layers, map(tuple, chosen_LP.tolist()), strict=True))

    def _pool_size(self, fraction: float) -> int:
        # A pool below the default top-k could not serve rows whose sparsity is not reduced.
        return max(self.model.moe_k, int(fraction * self.model.moe_num_experts + 0.5))

    def _depth_faults(self) -> list[str]:
        depth, available = self.elastic.depth, self.model.num_hidden_layers
        if not depth.probability or depth.min_layers < available:
            return []
        return [
            f"depth.min_layers is {depth.min_layers}, but reduced rows have at most "
            f"{available - 1} of the model's {available} layers; lower it, or set "
            "depth.probability to 0"
        ]

    def _width_faults(self) -> list[str]:
        if not self.elastic.width.probability:
            return []
        if not self.model.moe_layers:
            return ["width: the model has no MoE layers; set width.probability to 0"]
        experts, faults = self.model.moe_num_experts, []
        for fraction in self.elastic.width.fractions:
            if not 0 < fraction < 1:
                faults.append(f"width.fractions has {fraction}; expected more than 0, less than 1")
            elif self._pool_size(fraction) >= experts:
                faults.append(
                    f"width.fractions has {fraction}, which leaves all {experts} experts (rounded, "
                    f"and at least moe_k {self.model.moe_k}); lower it, use more experts or a "
                    "lower moe_k, or set width.probability to 0"
                )
        return faults

    def _sparsity_faults(self) -> list[str]:
        sparsity, k = self.elastic.sparsity, self.model.moe_k
        if not sparsity.probability:
            return []
        if not self.model.moe_layers:
            return ["sparsity: the model has no MoE layers; set sparsity.probability to 0"]
        if sparsity.min_k < k:
            return []
        return [
            f"sparsity.min_k is {sparsity.min_k}, but reduced rows have at most {k - 1} of the "
            f"model's moe_k {k}; lower it, or set sparsity.probability to 0"
        ]


def _uniform(stream: np.random.Philox, count: int) -> np.ndarray:
    """float64 [count] in [0, 1). Raw words, because numpy keeps only those the same for ever."""
    return (stream.random_raw(count) >> WORD_SHIFT) * 2.0**-53


def _between(uniform: float, low: int, high: int) -> int:
    """A uniform double as an integer, uniform in low..high."""
    return low + int(uniform * (high - low + 1))
