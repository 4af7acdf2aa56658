"""/metrics in Prometheus' format, under FastDeploy's names, and their sum over worker processes.

    EngineStats (read when scraped) --> gauges, totals  --+
    RequestRecord (when one ends)   --> histograms      --+--> registry of this application --> text

`install` gives an application its registry and route. `merge` adds up the texts of several
processes, for the front of `--workers N`.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from paddle_ernie.serve.engine.control import EngineStats
from paddle_ernie.serve.middleware.access_log import QUIET_PATHS, RequestRecord
from paddle_ernie.serve.middleware.asgi import GENERATION_PATHS

PREFIX = "fastdeploy:"
# The first token of a small model takes milliseconds, of a queued long prompt a minute.
FIRST_TOKEN_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1, 2.5, 5, 10, 30, 60)
PER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
LATENCY_BUCKETS = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 20, 30, 60, 120, 240, 480, 1920)
TOKEN_BUCKETS = tuple(digit * 10**power for power in range(5) for digit in (1, 2, 5))


class StatsSource(Protocol):
    """What of an engine's worker is used here."""

    @property
    def stats(self) -> EngineStats:
        """The newest figures."""


class EngineCollector(Collector):
    """Reads an engine's figures at each scrape; nothing is counted twice or kept."""

    def __init__(self, worker: StatsSource, max_batch_size: int | None) -> None:
        self._worker = worker
        self._max_batch_size = max_batch_size

    def describe(self) -> list[Metric]:
        """Empty: the registry need not scrape to know the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics of the engine."""
        stats = self._worker.stats
        for name, text, value in _gauges(stats, self._max_batch_size):
            yield GaugeMetricFamily(PREFIX + name, text, value=value)
        for name, text, value in _totals(stats):
            yield CounterMetricFamily(PREFIX + name, text, value=value)


def _gauges(stats: EngineStats, max_batch_size: int | None) -> list[tuple[str, str, float]]:
    total = max(1, stats.total_pages)
    gauges: list[tuple[str, str, float]] = [
        ("num_requests_running", "Requests that run", stats.running),
        ("num_requests_waiting", "Requests that wait for a place", stats.waiting),
        ("batch_size", "Sequences of the running batch", stats.running),
        ("available_gpu_block_num", "Pages for new tokens, cached ones without a user included",
         stats.free_pages),
        ("free_gpu_block_num", "Pages that hold nothing",
         max(0, stats.free_pages - stats.cached_pages)),
        ("max_gpu_block_num", "Pages in all", stats.total_pages),
        ("available_gpu_resource", "Available pages by all pages", stats.free_pages / total),
        ("gpu_cache_usage_perc", "Share of pages in use; 1 is all",
         1 - stats.free_pages / total if stats.total_pages else 0.0),
        ("hit_token_rate", "Share of prompt tokens found in the prefix cache",
         stats.cached_tokens / max(1, stats.prompt_tokens)),
        ("is_paused", "1 while the engine is paused", float(stats.paused)),
        ("weight_version", "Version of the weights being served", stats.version),
    ]  # fmt: skip
    if max_batch_size is not None:
        gauges += [
            ("max_batch_size", "Sequences that may run at a time", max_batch_size),
            ("available_batch_size", "Sequences that could be added",
             max(0, max_batch_size - stats.running)),
        ]  # fmt: skip
    return gauges


def _totals(stats: EngineStats) -> list[tuple[str, str, float]]:
    return [
        ("prompt_tokens_total", "Prompt tokens of accepted requests", stats.prompt_tokens),
        ("generation_tokens_total", "Tokens generated", stats.generated_tokens),
        ("prefix_cache_token_num", "Prompt tokens found in the prefix cache", stats.cached_tokens),
        ("computed_tokens_total", "Rows of all forward passes", stats.computed_tokens),
        ("request_preempted_total", "Times a sequence gave its pages to another one",
         stats.preemptions),
        ("request_aborted_total", "Sequences that were aborted", stats.aborted),
        ("weight_updates_total", "Weight updates that succeeded", stats.weight_updates),
    ]  # fmt: skip


class RequestMetrics:
    """Counts what ended: a sink of request records."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(PREFIX + name, text, buckets=buckets, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, text, labels, registry=registry)

        self._first = histogram(
            "time_to_first_token_seconds", "From request to first token", FIRST_TOKEN_BUCKETS
        )
        self._per_token = histogram(
            "time_per_output_token_seconds",
            "Mean interval between the tokens of a request",
            PER_TOKEN_BUCKETS,
        )
        self._latency = histogram(
            "e2e_request_latency_seconds", "From request to last byte", LATENCY_BUCKETS
        )
        self._prompt = histogram("request_prompt_tokens", "Prompt tokens", TOKEN_BUCKETS)
        self._generated = histogram("request_generation_tokens", "New tokens", TOKEN_BUCKETS)
        self._max_tokens = histogram("request_params_max_tokens", "max_tokens", TOKEN_BUCKETS)
        self._received = counter("requests_number", "Generation requests received")
        self._succeeded = counter("request_success", "Generation requests completed")
        self._route_bytes = counter("routed_experts_bytes", "Bytes of routes that were recorded")
        self._http = counter("http_requests", "All requests", "path", "status", "outcome")
        self._process = Gauge(
            PREFIX + "start_time_seconds", "When the server started", registry=registry
        )
        self._process.set(time.time())

    def __call__(self, record: RequestRecord) -> None:
        """Count one request."""
        if record.forwarded:
            return
        # Paths come from outside: only known ones become labels, or anybody could grow the table.
        known = record.path in GENERATION_PATHS or record.path in QUIET_PATHS
        path = record.path if known else "other"
        self._http.labels(path, str(record.status), record.outcome).inc()
        if record.path not in GENERATION_PATHS:
            return
        self._received.inc()
        if record.status == 200 and record.outcome == "done":
            self._succeeded.inc()
        if record.num_sequences:
            self._count_tokens(record)

    def _count_tokens(self, record: RequestRecord) -> None:
        self._latency.observe(record.ended_s - record.started_s)
        self._prompt.observe(record.prompt_tokens)
        self._generated.observe(record.completion_tokens)
        self._route_bytes.inc(record.route_bytes)
        for limit in record.max_tokens:
            self._max_tokens.observe(limit)
        if record.first_token_s is None or record.last_token_s is None:
            return
        self._first.observe(record.first_token_s - record.started_s)
        # Sequences of one request run side by side.
        intervals = record.completion_tokens / record.num_sequences - 1
        if intervals > 0:
            self._per_token.observe((record.last_token_s - record.first_token_s) / intervals)


def registry_of(worker: StatsSource | None, max_batch_size: int | None) -> CollectorRegistry:
    """A registry with this process's own figures, and an engine's if it has one."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    if worker is not None:
        registry.register(EngineCollector(worker, max_batch_size))
    return registry


def install(app: Starlette, worker: StatsSource, max_batch_size: int | None = None) -> None:
    """Count the application's requests, and answer GET /metrics."""
    registry = registry_of(worker, max_batch_size)
    sinks = getattr(app.state, "record_sinks", [])
    sinks.append(RequestMetrics(registry))
    app.state.record_sinks = sinks
    app.add_route("/metrics", _route(registry), methods=["GET"], include_in_schema=False)


def _route(registry: CollectorRegistry) -> Callable[[Request], Awaitable[Response]]:
    async def metrics(_request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return metrics


def text_of(registry: CollectorRegistry) -> str:
    """The registry in Prometheus' text format."""
    return generate_latest(registry).decode()
