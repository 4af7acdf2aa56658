"""`elastic:` which sub-models training samples (ERNIE 5.0 report, section 3.3), and named ones.

Probabilities default to the printed ones: 75 % of rows full depth, 80 % full width, 80 % full
top-k.
"""

from pydantic import Field

from paddle_ernie.config.base import Section


class DepthAxis(Section):
    """Reduced rows run a random subset of the layers."""

    probability: float = Field(0.25, ge=0, le=1)
    """Share of rows with reduced depth."""
    min_layers: int = Field(1, ge=1)
    """Fewest layers of a reduced row; the number is uniform from here to one below full."""


class WidthAxis(Section):
    """Reduced rows route among a random subset of the experts, drawn per layer."""

    probability: float = Field(0.20, ge=0, le=1)
    """Share of rows with reduced width."""
    fractions: list[float] = Field([0.5], min_length=1)
    """Sizes of the subset as shares of all experts, one drawn uniformly; the ablation uses half."""


class SparsityAxis(Section):
    """Reduced rows use fewer experts per token."""

    probability: float = Field(0.20, ge=0, le=1)
    """Share of rows with a reduced top-k."""
    min_k: int = Field(1, ge=1)
    """Smallest k; the reduced k is uniform from here to one below the default."""


class ElasticConfig(Section):
    """The three axes, drawn independently for each row."""

    depth: DepthAxis = DepthAxis()
    """Fewer layers."""
    width: WidthAxis = WidthAxis()
    """Fewer experts to route among."""
    sparsity: SparsityAxis = SparsityAxis()
    """Fewer experts per token."""


class SubnetSpec(Section):
    """A sub-model by sizes; which layers and experts it takes is decided by rule."""

    layers: int | list[int] | None = None
    """How many layers (spread evenly, first and last kept), or their indices; null: all."""
    experts: int | None = Field(None, ge=1)
    """Experts per MoE layer (the lowest ids unless chosen by importance); null: all."""
    top_k: int | None = Field(None, ge=1)
    """Experts per token; null: the default."""
