"""Records and errors of an engine's control side: what it serves, how it does, new weights.

Used by the HTTP server, metrics and the RL system. No Paddle.
"""

from dataclasses import dataclass
from typing import Literal

from paddle_ernie.utils.errors import PaddleErnieError

WEIGHTS, KV_CACHE = "weight", "kv_cache"
TAGS = frozenset({WEIGHTS, KV_CACHE})
"""What sleep frees and wakeup brings back; FastDeploy's names."""

UpdateMode = Literal["keep", "abort"]
KvMode = Literal["keep", "recompute"]


class EngineFullError(PaddleErnieError):
    """As many requests wait as may; try again later."""


class EngineStoppedError(PaddleErnieError):
    """The engine has failed or was closed; nothing more comes."""


@dataclass(frozen=True)
class ModelInfo:
    """What an engine serves."""

    max_model_len: int
    """Prompt and answer together, in tokens."""
    vocab_size: int
    """Prompt ids are below it."""
    num_experts: int
    moe_k: int
    num_moe_layers: int
    """The last three are the shape of routes; all 0 for a dense model."""
    num_pages: int
    """For keys and values, of 64 positions each."""
    version: int
    """Of the weights: `step` of the snapshot's version.yaml, 0 without one."""
    checksum: str
    """SHA-256 of the weights' names and bytes."""
    fingerprint: str
    """Of operators and number formats: equal ones compute equal bits."""


@dataclass(frozen=True)
class EngineStats:
    """One moment of an engine; totals count from its start."""

    running: int = 0
    waiting: int = 0
    free_pages: int = 0
    """Pages for new tokens: unused, or of the prefix cache without a user."""
    cached_pages: int = 0
    """Pages that the prefix cache knows."""
    total_pages: int = 0
    paused: bool = False
    sleeping: tuple[str, ...] = ()
    version: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    """Of requests that were let in."""
    cached_tokens: int = 0
    """Of those, tokens found in the prefix cache."""
    generated_tokens: int = 0
    computed_tokens: int = 0
    """Rows of all forward passes."""
    preemptions: int = 0
    finished: int = 0
    aborted: int = 0
    weight_updates: int = 0


@dataclass(frozen=True)
class WeightsUpdate:
    """New weights to serve: a snapshot by version or path; neither: the newest version."""

    version: str | None = None
    """A folder's name in `weights_dir`."""
    path: str | None = None
    """A folder inside `weights_dir`, absolute or relative to it."""
    mode: UpdateMode = "keep"
    """keep: running requests go on with the new weights; abort: they end."""
    kv: KvMode = "keep"
    """keep: what was computed stays; recompute: it is run again with the new weights."""
    verify_checksum: bool = False
    """The snapshot's version.yaml must name the checksum that comes out."""


@dataclass(frozen=True)
class WeightsReport:
    """What is served after an update."""

    version: int
    checksum: str
    seconds: float
    """Reading and packing; requests went on meanwhile."""
    tensors: int
    bytes: int
