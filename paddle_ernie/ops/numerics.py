"""How matrix products are rounded, and the packed weights that go with it. Passed down explicitly
from whoever starts a forward pass to every operator that multiplies.

    Recipe      formats of forward product, dgrad (activations' gradient) and wgrad (weights')
    Numerics    a recipe, and the weights packed for it, as long as they do not change

fp32: operands as they are. bf16: rounded to nearest even. fp8: rounded to bf16, then E4M3 with a
scale per 1 x 128 tile (activations, gradients) or 128 x 128 block (weights). Sums are fp32 always.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import paddle

from paddle_ernie.config.precision import PrecisionConfig

FORMATS = ("fp32", "bf16", "fp8")
"""In the order of the C++ enumeration."""


@dataclass(frozen=True)
class Recipe:
    """Formats of the three products of a linear map."""

    forward: str = "fp32"
    dgrad: str = "fp32"
    wgrad: str = "fp32"
    power_of_two_scales: bool = False
    """FP8 scales as UE8M0."""

    def __post_init__(self) -> None:
        for name in ("forward", "dgrad", "wgrad"):
            if (value := getattr(self, name)) not in FORMATS:
                raise ValueError(f"{name} is {value!r}; expected one of {', '.join(FORMATS)}")

    @property
    def high(self) -> "Recipe":
        """For what FP8 is too coarse for: output layer, attention."""

        def raised(name: str) -> str:
            return "bf16" if name == "fp8" else name

        return Recipe(raised(self.forward), raised(self.dgrad), raised(self.wgrad))

    @classmethod
    def of(cls, config: PrecisionConfig) -> "Recipe":
        """What a configuration asks for."""

        def chosen(product: str) -> str:
            return "fp8" if config.fp8 and product in config.fp8_gemms else config.dtype

        scales = config.fp8_scales == "ue8m0"
        return cls(chosen("forward"), chosen("dgrad"), chosen("wgrad"), scales)


FP32 = Recipe()
BF16 = Recipe("bf16", "bf16", "bf16")
FP8 = Recipe("fp8", "fp8", "fp8")
PRECISIONS = {"fp32": FP32, "bf16": BF16, "fp8": FP8}


class PackCache:
    """Packed weights by weight and layout.

    Whoever makes one promises that no weight changes during its life. With `keep` False nothing is
    stored: for a single forward and backward pass, which ask for each form once.
    """

    def __init__(self, *, keep: bool = True) -> None:
        self._keep = keep
        self._packed: dict[tuple[int, Hashable], paddle.Tensor] = {}
        self._weights: dict[int, paddle.Tensor] = {}  # held, so that an id stays theirs

    def get(
        self, weight: paddle.Tensor, key: Hashable, make: Callable[[], paddle.Tensor]
    ) -> paddle.Tensor:
        """The packed form `key` of a weight, made at the first call."""
        if not self._keep:
            return make()
        place = (id(weight), key)
        if place not in self._packed:
            self._weights[id(weight)] = weight
            self._packed[place] = make()
        return self._packed[place]

    def clear(self) -> None:
        """Forget everything: weights have changed."""
        self._packed.clear()
        self._weights.clear()


@dataclass(frozen=True)
class Numerics:
    """For forward passes (and their backward passes) between which no weight changes."""

    recipe: Recipe = FP32
    packs: PackCache = field(default_factory=PackCache)

    @property
    def high(self) -> "Numerics":
        """The same weights, without FP8."""
        return Numerics(self.recipe.high, self.packs)

    @property
    def exact(self) -> "Numerics":
        """fp32, for routers."""
        return Numerics(FP32, self.packs)
