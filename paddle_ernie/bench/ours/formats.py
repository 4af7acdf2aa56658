"""How a benchmark asks our operators for a number format."""

from paddle_ernie.ops.numerics import PRECISIONS, Numerics


def numerics_of(format_name: str) -> Numerics:
    """A recipe, and room for weights packed for it."""
    return Numerics(recipe=PRECISIONS[format_name])
