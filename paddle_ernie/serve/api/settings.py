"""What the HTTP side of the server is told when it starts; the engine has EngineOptions.

Made by tools/serve.py from FastDeploy's flags, and by tests. No Paddle.
"""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

MEBIBYTE = 1 << 20


class RouteStoreKind(str, Enum):
    """Where the chosen experts of each token go when routing replay is on."""

    RESPONSE = "response"
    """Into the answer, for every request; without replay, for those that ask for them."""
    LOCAL = "local"
    """Into files below `local_store_dir`, laid out as FastDeploy's."""


@dataclass(frozen=True)
class RoutingReplay:
    """FastDeploy's --routing-replay-config."""

    store: RouteStoreKind = RouteStoreKind.RESPONSE
    local_store_dir: Path = Path("routing_replay_output")
    """Emptied when the server starts, as FastDeploy does."""
    fused: bool = False
    """One file per rollout instead of one per layer."""
    only_last_turn: bool = False
    """A turn's routes replace those of the turn before."""


@dataclass(frozen=True)
class ServerSettings:
    """One server. Defaults are those of tools/serve.py."""

    model_dir: Path | None = None
    """Shown as `root` in /v1/models; a chat template file beside it is read."""
    host: str = "127.0.0.1"
    port: int = 8000
    metrics_port: int | None = None
    """/metrics on a port of its own; None or `port`: on the server's."""
    workers: int = 1
    """Engine processes; more than one stand behind a front."""
    prefix_affinity: bool = True
    """Send prompts that begin alike to the same process, for its prefix cache."""
    served_model_name: str | None = None
    """With a name, requests for another one are refused; `default` is always accepted."""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Bearer tokens; none: everybody may call."""
    allow_open: bool = False
    """Serve without a key on an address that other machines reach."""
    max_concurrency: int = 512
    """Requests in flight at most; more get 429."""
    max_body_bytes: int = 32 * MEBIBYTE
    """Larger bodies get 413."""
    request_timeout_s: float | None = None
    """A request still running after so long ends with a timeout error; None: no limit."""
    stream_write_timeout_s: float = 60.0
    """A client that reads nothing for so long is disconnected."""
    graceful_shutdown_s: float = 30.0
    """How long running requests may go on after SIGTERM."""
    enable_logprob: bool = True
    max_logprobs: int = 20
    """Alternatives per token at most; -1: as many as there are tokens."""
    routing_replay: RoutingReplay | None = None
    dynamic_load_weight: bool = False
    """While the weights are put away, /health and requests answer 304, as FastDeploy does."""
    chat_template: str | None = None
    """Jinja text that replaces the model's own."""
    trust_request_chat_template: bool = False
    """Let requests bring a template of their own: it can loop for hours, so not from strangers."""
    parse_tool_calls: bool = True
    parse_reasoning: bool | None = None
    """None: if the model's tokenizer or template knows </think>."""
    access_log: Path | None = None
    """A file that gets a JSON line per request; None: stderr."""

    @property
    def model_name(self) -> str:
        """The name in /v1/models."""
        return self.served_model_name or str(self.model_dir or "default")
