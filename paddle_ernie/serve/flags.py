"""The command line of tools/serve.py: FastDeploy's flags and ours, to settings and options.

    argv -> parse -> ServeCommand(model, ServerSettings, EngineOptions, threads)

Names may be written with dashes or underscores. Flags of FastDeploy that mean nothing on one CPU
are taken and named in one log line, so that its launch scripts run; flags nobody knows are errors.
No Paddle.
"""

import argparse
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddle_ernie.serve.api.settings import RouteStoreKind, RoutingReplay, ServerSettings
from paddle_ernie.serve.engine.options import PRECISIONS, EngineOptions
from paddle_ernie.utils.cli import tool_parser, whole_number
from paddle_ernie.utils.errors import InputError

if TYPE_CHECKING:
    from paddle_ernie.serve.engine.worker import EngineWorker

logger = logging.getLogger(__name__)

PAGE_SIZE = 64
MAX_PORT = 65535
PARSERS = ("auto", "none", "json", "ernie-x1", "ernie-45-vl-thinking")
"""`json` and FastDeploy's names mean the same: <think> and JSON in <tool_call>."""

WITHOUT_MEANING = (
    "cache-queue-port", "cache-transfer-protocol", "controller-port", "data-parallel-size",
    "device-ids", "disable-custom-all-reduce", "dist-init-ip", "early-stop-config", "enable-eplb",
    "enable-expert-parallel", "enable-mm", "engine-worker-queue-port", "eplb-config",
    "gpu-memory-utilization", "graph-optimization-config", "guided-decoding-backend",
    "innode-prefill-ports", "ips", "kv-cache-ratio", "limit-mm-per-prompt", "lm-head-fp32",
    "load-choices", "local-data-parallel-id", "long-prefill-token-threshold",
    "max-encoder-cache", "max-long-partial-prefills", "max-num-partial-prefills",
    "max-processor-cache", "max-waiting-time", "mm-processor-kwargs", "model-impl", "nnodes",
    "node-rank", "num-nextn-predict-layers", "pd-comm-port", "plas-attention-config",
    "rdma-comm-ports", "revision", "router", "rsync-config", "scheduler-config",
    "scheduler-name", "shutdown-comm-group-if-worker-idle", "speculative-config",
    "splitwise-role", "static-decode-blocks", "swap-space", "tensor-parallel-size",
    "trust-remote-code", "use-cudagraph", "use-internode-ll-two-stage", "use-warmup",
)  # fmt: skip
"""Of many GPUs, machines or processes, of images, or of how FastDeploy is built."""


@dataclass(frozen=True)
class ServeCommand:
    """What a command line asks for."""

    model: Path
    settings: ServerSettings
    options: EngineOptions
    threads: int | None
    without_meaning: tuple[str, ...]
    """Flags that were given and do nothing here."""

    def warn(self) -> None:
        """Name the flags that do nothing."""
        if self.without_meaning:
            flags = ", ".join(f"--{name}" for name in self.without_meaning)
            logger.warning("%s: without meaning on one CPU; taken and not used", flags)


def parse(documentation: str, argv: Sequence[str]) -> ServeCommand:
    """Leaves the program with a message at flags nobody knows; InputError at values."""
    arguments = _parser(documentation).parse_args([_with_dashes(text) for text in argv])
    _check(arguments)
    given = tuple(name for name in WITHOUT_MEANING if hasattr(arguments, name.replace("-", "_")))
    replay = routing_replay(arguments.routing_replay_config)
    return ServeCommand(
        arguments.model,
        _settings(arguments, replay),
        _options(arguments, replay),
        arguments.threads,
        given,
    )


def make_worker(model: Path, options: EngineOptions) -> "EngineWorker":
    """The engine of a process; imports Paddle only there."""
    from paddle_ernie.serve.engine.worker import EngineWorker

    return EngineWorker(model, options)


def routing_replay(text: str | None) -> RoutingReplay | None:
    """FastDeploy's JSON; None if replay is off."""
    if text is None:
        return None
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise InputError(f"--routing-replay-config: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InputError(f"--routing-replay-config: {text}; expected an object")
    if not fields.get("enable_routing_replay", False):
        return None
    kind = fields.get("routing_store_type", RouteStoreKind.LOCAL.value)
    if kind not in [store.value for store in RouteStoreKind]:
        raise InputError(
            f"--routing-replay-config: routing_store_type is {kind!r}; expected 'local' (files) or "
            "'response' (in the answer); the others need a store that is not public"
        )
    return RoutingReplay(
        RouteStoreKind(kind),
        Path(fields.get("local_store_dir", RoutingReplay.local_store_dir)),
        fused=bool(fields.get("use_fused_put", False)),
        only_last_turn=bool(fields.get("only_last_turn", False)),
    )


def _with_dashes(text: str) -> str:
    """--max_model_len=8 -> --max-model-len=8."""
    if not text.startswith("--"):
        return text
    name, equals, value = text.partition("=")
    return name.replace("_", "-") + equals + value


def _settings(arguments: argparse.Namespace, replay: RoutingReplay | None) -> ServerSettings:
    return ServerSettings(
        model_dir=arguments.model,
        host=arguments.host,
        port=arguments.port,
        metrics_port=arguments.metrics_port,
        workers=arguments.workers,
        prefix_affinity=arguments.prefix_affinity,
        served_model_name=arguments.served_model_name,
        api_keys=tuple(arguments.api_key),
        allow_open=arguments.allow_open,
        max_concurrency=arguments.max_concurrency,
        max_body_bytes=arguments.max_body_bytes,
        request_timeout_s=arguments.request_timeout,
        stream_write_timeout_s=arguments.stream_write_timeout,
        graceful_shutdown_s=arguments.timeout_graceful_shutdown,
        enable_logprob=arguments.enable_logprob,
        max_logprobs=arguments.max_logprobs,
        routing_replay=replay,
        dynamic_load_weight=arguments.dynamic_load_weight,
        chat_template=_template(arguments.chat_template),
        trust_request_chat_template=arguments.trust_request_chat_template,
        parse_tool_calls=arguments.tool_call_parser != "none",
        parse_reasoning={"auto": None, "none": False}.get(arguments.reasoning_parser, True),
        access_log=arguments.access_log,
    )


def _options(arguments: argparse.Namespace, replay: RoutingReplay | None) -> EngineOptions:
    fp8 = arguments.quantization == "block_wise_fp8"
    return EngineOptions(
        max_model_len=arguments.max_model_len,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=max(arguments.max_num_batched_tokens, arguments.max_num_seqs),
        max_waiting=arguments.max_waiting,
        num_pages=arguments.num_gpu_blocks_override,
        kv_cache_bytes=int(arguments.kv_cache_gib * 2**30),
        enable_prefix_caching=arguments.enable_prefix_caching,
        enable_chunked_prefill=arguments.enable_chunked_prefill,
        precision="fp8" if fp8 else arguments.precision,
        moe_k=arguments.moe_k,
        subnet=arguments.subnet,
        weights_dir=arguments.weights_dir,
        keep_routes=replay is not None,
    )


def _check(arguments: argparse.Namespace) -> None:
    """What argparse cannot say well."""
    expected = {
        "load_strategy": ("normal", "new weights come from --weights-dir"),
        "logprobs_mode": ("raw_logprobs", "a request may ask for temp_scaled_logprobs"),
        "block_size": (PAGE_SIZE, "pages have that many positions"),
        "quantization": ("block_wise_fp8", "or leave it out, or see --precision"),
    }
    for name, (value, hint) in expected.items():
        found = getattr(arguments, name)
        if found not in (None, value):
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} is {found}; expected {value}: {hint}")
    if arguments.tokenizer not in (None, arguments.model):
        raise InputError(
            f"--tokenizer is {arguments.tokenizer}; expected it in the model's directory, "
            f"{arguments.model}"
        )
    if arguments.max_logprobs < -1:
        raise InputError(f"--max-logprobs is {arguments.max_logprobs}; expected -1 (all) or more")


def _template(given: str | None) -> str | None:
    """A file's content, or the text itself if it looks like a template."""
    if given is None or "{" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--chat-template {given}: {error}; expected a file, or a template's text"
        ) from error


def _positive(text: str) -> float:
    """A `type` of arguments: seconds, GiB."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}; expected a number above 0")
    return value


def _parser(documentation: str) -> argparse.ArgumentParser:
    parser = tool_parser(documentation)
    parser.allow_abbrev = False
    _add_server(parser.add_argument_group("server"))
    _add_engine(parser.add_argument_group("engine"))
    for name in WITHOUT_MEANING:
        parser.add_argument(
            f"--{name}", nargs="?", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
    return parser


def _add_server(group: Any) -> None:
    default = ServerSettings()
    port = whole_number(0, MAX_PORT)
    on_off = argparse.BooleanOptionalAction
    add = group.add_argument
    add("--host", default=default.host, help="address to serve on (%(default)s)")
    add("--port", type=port, default=default.port, help="(%(default)s)")
    add("--metrics-port", type=port, help="a port of its own for /metrics")
    add("--workers", type=whole_number(1), default=1, help="engine processes (%(default)s)")
    add("--prefix-affinity", action=on_off, default=True,
        help="send prompts that begin alike to the same process")  # fmt: skip
    add("--served-model-name", metavar="NAME", help="refuse requests for other models")
    add("--api-key", action="extend", nargs="+", default=[], metavar="KEY",
        help="bearer tokens that may call; else those of FD_API_KEY")  # fmt: skip
    add("--allow-open", action="store_true", help="serve a network without a key")
    add("--max-concurrency", type=whole_number(1), default=default.max_concurrency,
        help="requests at once; more get 429 (%(default)s)")  # fmt: skip
    add("--max-body-bytes", type=whole_number(1), default=default.max_body_bytes,
        help="larger bodies get 413 (%(default)s)")  # fmt: skip
    add("--request-timeout", type=_positive, metavar="S", help="requests end after it")
    add("--stream-write-timeout", type=_positive, default=default.stream_write_timeout_s,
        metavar="S", help="clients that read nothing are dropped (%(default)s)")  # fmt: skip
    add("--timeout-graceful-shutdown", type=_positive, default=default.graceful_shutdown_s,
        metavar="S", help="for running requests after SIGTERM (%(default)s)")  # fmt: skip
    add("--enable-logprob", action=on_off, default=True, help="log-probabilities on request")
    add("--max-logprobs", type=int, default=default.max_logprobs,
        help="alternatives per token; -1: all (%(default)s)")  # fmt: skip
    add("--logprobs-mode", help=argparse.SUPPRESS)
    add("--routing-replay-config", metavar="JSON",
        help='{"enable_routing_replay": true, "routing_store_type": "local"}')  # fmt: skip
    add("--chat-template", metavar="FILE", help="instead of the model's")
    add("--trust-request-chat-template", action="store_true",
        help="let requests bring templates")  # fmt: skip
    add("--tool-call-parser", choices=PARSERS, default="auto", help="(%(default)s)")
    add("--reasoning-parser", choices=PARSERS, default="auto", help="(%(default)s)")
    add("--access-log", type=Path, metavar="FILE", help="a JSON line per request (default: stderr)")


def _add_engine(group: Any) -> None:
    default = EngineOptions()
    on_off = argparse.BooleanOptionalAction
    add = group.add_argument
    add("--model", type=Path, required=True, metavar="DIR", help="model directory")
    add("--tokenizer", type=Path, help=argparse.SUPPRESS)
    add("--max-model-len", type=whole_number(1), metavar="N",
        help="longest prompt and reply (default: the model's)")  # fmt: skip
    add("--max-num-seqs", type=whole_number(1), default=default.max_num_seqs,
        help="sequences that run at once (%(default)s)")  # fmt: skip
    add("--max-num-batched-tokens", type=whole_number(1), default=default.max_num_batched_tokens,
        metavar="N", help="tokens of one step (%(default)s)")  # fmt: skip
    add("--max-waiting", type=whole_number(1), default=default.max_waiting,
        help="requests that may wait (%(default)s)")  # fmt: skip
    add("--num-gpu-blocks-override", type=whole_number(1), metavar="N",
        help=f"pages of {PAGE_SIZE} positions")  # fmt: skip
    add("--block-size", type=int, help=argparse.SUPPRESS)
    add("--kv-cache-gib", type=_positive, default=1.0, metavar="GIB",
        help="for keys and values (%(default)s)")  # fmt: skip
    add("--enable-prefix-caching", action=on_off, default=True, help="reuse common beginnings")
    add("--enable-chunked-prefill", action=on_off, default=True, help="prompts in pieces")
    add("--quantization", help="block_wise_fp8: the same as --precision fp8")
    add("--precision", choices=PRECISIONS, default=default.precision,
        help="operands of matrix products (%(default)s)")  # fmt: skip
    add("--moe-k", type=whole_number(1), metavar="K", help="experts per token")
    add("--subnet", metavar="SPEC", help="serve a sub-model, e.g. layers=4,experts=8,top_k=1")
    add("--weights-dir", type=Path, metavar="DIR", help="where /v1/update_weights finds versions")
    add("--dynamic-load-weight", action="store_true", help="answer 304 while weights sleep")
    add("--load-strategy", help=argparse.SUPPRESS)
    add("--threads", type=whole_number(1), help="threads (default: every core)")
