"""Subnet: which layers, experts and top-k a sub-model uses.

A frozen value: the forward takes one per row, the sampler draws them, extraction cuts one out, logs
name it by its id. A Subnet says nothing about which model it belongs to; `validate` checks it
against one.

    model: layer 0 dense, layers 1..3 with 4 experts, k = 2
    Subnet(layers=(0, 1, 3), experts=((), (0, 2, 3), (1, 2, 3)), top_k=(0, 2, 1))
        layer 2 is skipped, each kept MoE layer routes among 3 experts, layer 3 to one per token
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from paddle_ernie.config.elastic import SubnetSpec
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.elastic.ranking import Importance
from paddle_ernie.utils.errors import InputError

ID_BYTES = 8  # 16 hex digits: a collision among a million subnets has odds below 1 in 10 million
SPEC_FORM = "expected `full` or KEY=VALUE,... of layers, experts, top_k, e.g. layers=4,experts=8"


@dataclass(frozen=True)
class SubnetSizes:
    """How much a Subnet keeps; equal sizes cost the same, whichever layers and experts they are."""

    layers: int
    """Kept layers."""
    experts: tuple[int, ...]
    """Pool size per kept layer; 0 in a dense layer."""
    top_k: tuple[int, ...]
    """Experts per token per kept layer; 0 in a dense layer."""


@dataclass(frozen=True)
class Subnet:
    """Kept layers and, aligned with them, the expert pool and top-k of each."""

    layers: tuple[int, ...]
    """Ascending indices of the kept layers."""
    experts: tuple[tuple[int, ...], ...]
    """Ascending ids of the experts that take part in routing; () in a dense layer."""
    top_k: tuple[int, ...]
    """Experts per token; 0 in a dense layer."""

    @classmethod
    def full(cls, config: ModelConfig) -> "Subnet":
        """Every layer, every expert, the default top-k."""
        return cls.from_spec(SubnetSpec(), config)

    @classmethod
    def from_spec(
        cls, spec: SubnetSpec, config: ModelConfig, ranking: Importance | None = None
    ) -> "Subnet":
        """The Subnet of these sizes; what it keeps is the best by `ranking`.

        Without a ranking layers are spread evenly (first and last kept; a single layer is the
        first) and experts are those with the lowest ids. Listed layers are taken as they are.
        """
        _check_spec(spec, config)
        layers = _choose_layers(spec.layers, config, ranking)
        size = config.moe_num_experts if spec.experts is None else spec.experts
        top_k = config.moe_k if spec.top_k is None else spec.top_k
        experts = tuple(
            _choose_experts(layer, size, config, ranking) if config.is_moe_layer(layer) else ()
            for layer in layers
        )
        return cls(layers, experts, tuple(top_k if pool else 0 for pool in experts))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Subnet":
        """Inverse of `to_json`; a malformed value is an InputError."""
        try:
            return cls(
                tuple(int(layer) for layer in value["layers"]),
                tuple(tuple(int(expert) for expert in pool) for pool in value["experts"]),
                tuple(int(k) for k in value["top_k"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"subnet: {value!r} cannot be read ({type(error).__name__}: {error}); expected "
                "an object with lists `layers`, `experts` (a list per layer) and `top_k`"
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Plain lists."""
        return {
            "layers": list(self.layers),
            "experts": [list(pool) for pool in self.experts],
            "top_k": list(self.top_k),
        }

    @cached_property
    def id(self) -> str:
        """Hash of the content, the same on every machine and in every process."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(canonical.encode(), digest_size=ID_BYTES).hexdigest()

    def sizes(self) -> SubnetSizes:
        """How much is kept."""
        return SubnetSizes(len(self.layers), tuple(map(len, self.experts)), self.top_k)

    def is_full(self, config: ModelConfig) -> bool:
        """Whether nothing is left out of the model."""
        return self == Subnet.full(config)

    def validate(self, config: ModelConfig) -> None:
        """Raise an InputError that lists everything this model does not have or allow."""
        faults = _shape_faults(self) or [
            fault
            for index in range(len(self.layers))
            for fault in _layer_faults(self, index, config)
        ]
        if faults:
            raise InputError("subnet does not fit the model:\n  " + "\n  ".join(faults))


def parse_spec(text: str) -> SubnetSpec:
    """`layers=4,experts=8,top_k=1`, `layers=0+2+5` (listed) or `full` as a SubnetSpec."""
    if text.strip() == "full":
        return SubnetSpec()
    values: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in SubnetSpec.model_fields or key in values:
            raise InputError(f"subnet {text!r}: cannot read {part.strip()!r}; {SPEC_FORM}")
        numbers = value.split("+") if key == "layers" else [value]
        if not all(number.strip().isdecimal() for number in numbers):
            raise InputError(
                f"subnet {text!r}: {key} is {value!r}; expected a whole number"
                + (", or indices joined by `+`, e.g. layers=0+2+5" if key == "layers" else "")
            )
        values[key] = [int(number) for number in numbers] if len(numbers) > 1 else int(value)
    if 0 in (values.get("experts"), values.get("top_k")):
        raise InputError(f"subnet {text!r}: experts and top_k must be at least 1")
    return SubnetSpec(**values)


def parse_subnet(text: str, config: ModelConfig, ranking: Importance | None = None) -> Subnet:
    """The Subnet that a command-line argument describes; see `parse_spec`."""
    return Subnet.from_spec(parse_spec(text), config, ranking)


def _choose_layers(
    wanted: int | list[int] | None, config: ModelConfig, ranking: Importance | None
) -> tuple[int, ...]:
    if isinstance(wanted, list):
        return tuple(sorted(wanted))
    count = config.num_hidden_layers if wanted is None else wanted
    if ranking is not None:
        return ranking.best_layers(count)
    # Gaps between the points are at least 1, so rounding never merges two of them.
    spread = np.linspace(0, config.num_hidden_layers - 1, count)
    return tuple(int(index) for index in np.floor(spread + 0.5))


def _choose_experts(
    layer: int, size: int, config: ModelConfig, ranking: Importance | None
) -> tuple[int, ...]:
    if ranking is None or size == config.moe_num_experts:
        return tuple(range(size))
    return ranking.best_experts(layer, size)


def _check_spec(spec: SubnetSpec, config: ModelConfig) -> None:
    faults = _layer_spec_faults(spec.layers, config.num_hidden_layers)
    routed = config.moe_num_experts
    if not routed and (spec.experts is not None or spec.top_k is not None):
        faults.append("experts and top_k: the model has no experts; leave both out")
    elif routed:
        if spec.experts is not None and spec.experts > routed:
            faults.append(
                f"experts: {spec.experts}, but the model has {routed}; expected 1..{routed}"
            )
        if spec.top_k is not None and spec.top_k > config.moe_k:
            faults.append(
                f"top_k: {spec.top_k}, but the model routes to {config.moe_k}; "
                f"expected 1..{config.moe_k}"
            )
        top_k = config.moe_k if spec.top_k is None else spec.top_k
        if spec.experts is not None and spec.experts < top_k:
            faults.append(
                f"experts: {spec.experts} is less than top_k {top_k}"
                f"{'' if spec.top_k else ' (the default)'}; raise experts or lower top_k"
            )
    if faults:
        raise InputError("subnet sizes do not fit the model:\n  " + "\n  ".join(faults))


def _layer_spec_faults(wanted: int | list[int] | None, available: int) -> list[str]:
    if wanted is None:
        return []
    if isinstance(wanted, int):
        if 1 <= wanted <= available:
            return []
        return [f"layers: {wanted}, but the model has {available}; expected 1..{available}"]
    faults = [] if wanted else ["layers: the list is empty; expected at least one index"]
    if strange := sorted({layer for layer in wanted if not 0 <= layer < available}):
        faults.append(f"layers: no layer {strange}; the model has layers 0..{available - 1}")
    if len(set(wanted)) < len(wanted):
        faults.append(f"layers: {wanted} lists a layer twice")
    return faults


def _shape_faults(subnet: Subnet) -> list[str]:
    if not subnet.layers:
        return ["layers: empty; expected at least one"]
    if len(subnet.experts) != len(subnet.layers) or len(subnet.top_k) != len(subnet.layers):
        return [
            f"layers, experts and top_k have {len(subnet.layers)}, {len(subnet.experts)} and "
            f"{len(subnet.top_k)} entries; expected one per kept layer"
        ]
    if list(subnet.layers) != sorted(set(subnet.layers)):
        return [f"layers: {list(subnet.layers)}; expected ascending indices without repeats"]
    return []


def _layer_faults(subnet: Subnet, index: int, config: ModelConfig) -> list[str]:
    layer, pool, top_k = subnet.layers[index], subnet.experts[index], subnet.top_k[index]
    if not 0 <= layer < config.num_hidden_layers:
        return [f"layers: no layer {layer}; the model has 0..{config.num_hidden_layers - 1}"]
    if not config.is_moe_layer(layer):
        if pool or top_k:
            return [f"layer {layer} is dense; expected no experts and top_k 0, found k {top_k}"]
        return []
    faults = []
    if list(pool) != sorted(set(pool)) or not set(pool) <= set(range(config.moe_num_experts)):
        faults.append(
            f"layer {layer}: experts {list(pool)}; expected ascending ids in "
            f"0..{config.moe_num_experts - 1} without repeats"
        )
    limit = min(len(pool), config.moe_k)
    if not 1 <= top_k <= limit:
        faults.append(
            f"layer {layer}: top_k {top_k}; expected 1..{limit} (pool of {len(pool)} experts, "
            f"model's top_k {config.moe_k})"
        )
    return faults
