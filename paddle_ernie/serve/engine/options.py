"""EngineOptions: how an engine runs its model. Made by tools and the HTTP server's settings.

No Paddle, so that options are checked before it is imported. What depends on the model (the longest
sequence, pages) is settled by the engine when it has one.
"""

from dataclasses import dataclass
from pathlib import Path

from paddle_ernie.utils.errors import InputError

PRECISIONS = ("fp32", "bf16", "fp8")


@dataclass(frozen=True)
class EngineOptions:
    """Limits, memory and numerics of one engine."""

    max_model_len: int | None = None
    """Longest prompt and answer together, in tokens; None: what the model is meant for."""
    max_num_seqs: int = 128
    """Sequences that run at a time; others wait."""
    max_num_batched_tokens: int = 512
    """Tokens of one step. Sequences that decode come first, prompts share what is left."""
    max_waiting: int = 4096
    """Requests that may wait for a place; one more is refused."""
    num_pages: int | None = None
    """Pages of 64 positions for keys and values; None: as many as `kv_cache_bytes` holds."""
    kv_cache_bytes: int = 1 << 30
    """Memory for keys and values at most; less if `max_num_seqs` longest sequences need less."""
    enable_prefix_caching: bool = True
    """Keep the pages of what was run, for prompts that begin alike."""
    enable_chunked_prefill: bool = True
    """Run a long prompt over several steps, between which other sequences go on."""
    precision: str = "fp32"
    """How matrix products are rounded: fp32, bf16 or fp8."""
    moe_k: int | None = None
    """Experts per token; None: the model's."""
    subnet: str | None = None
    """Serve the sub-model of this specification, such as layers=4,experts=8."""
    weights_dir: Path | None = None
    """Where snapshots of new weights lie, a folder per version; None: weights stay."""
    keep_routes: bool = False
    """Record the routes of every request, so that each can reuse any cached page. Otherwise a
    request with routes only reuses pages of others that asked for them."""

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_waiting",
                     "num_pages", "kv_cache_bytes", "moe_k"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; expected 1 or more")
        if self.precision not in PRECISIONS:
            raise InputError(
                f"precision is {self.precision!r}; expected one of {', '.join(PRECISIONS)}"
            )
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise InputError(
                f"max_num_seqs is {self.max_num_seqs}, max_num_batched_tokens "
                f"{self.max_num_batched_tokens}; each running sequence needs a token of a step: "
                "raise the second or lower the first"
            )

    @property
    def max_requests(self) -> int:
        """Running and waiting together; one more is refused."""
        return self.max_num_seqs + self.max_waiting
