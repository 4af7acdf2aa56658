"""Several processes' metrics as one."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from paddle_ernie.serve.processes.metrics_merge import merge


def text(requests: int, share: float, version: int, latency: float) -> str:
    registry = CollectorRegistry()
    counter = Counter("fastdeploy:http_requests", 'all "requests"', ["path"], registry=registry)
    counter.labels('/a"b\\c').inc(requests)
    Gauge("fastdeploy:hit_token_rate", "share", registry=registry).set(share)
    Gauge("fastdeploy:weight_version", "version", registry=registry).set(version)
    Gauge("fastdeploy:num_requests_running", "running", registry=registry).set(requests)
    times = Histogram("fastdeploy:latency_seconds", "time", buckets=(1, 2), registry=registry)
    times.observe(latency)
    return generate_latest(registry).decode()


def test_sums_means_and_lowest():
    merged = merge([text(2, 0.5, 7, 0.5), text(3, 0.25, 8, 1.5)])
    families = {f.name: f for f in text_string_to_metric_families(merged)}
    samples = {(s.name, *s.labels.values()): s.value for f in families.values() for s in f.samples}
    assert samples[("fastdeploy:http_requests_total", '/a"b\\c')] == 5
    assert samples[("fastdeploy:hit_token_rate",)] == 0.375
    assert samples[("fastdeploy:weight_version",)] == 7
    assert samples[("fastdeploy:num_requests_running",)] == 5
    assert samples[("fastdeploy:latency_seconds_bucket", "1.0")] == 1
    assert samples[("fastdeploy:latency_seconds_bucket", "2.0")] == 2
    assert samples[("fastdeploy:latency_seconds_count",)] == 2
    assert families["fastdeploy:http_requests"].type == "counter"
    assert families["fastdeploy:latency_seconds"].type == "histogram"
    assert families["fastdeploy:http_requests"].documentation == 'all "requests"'


def test_one_text_stays_what_it_says():
    one = text(2, 0.5, 7, 0.5)

    def said(content):
        return {
            (s.name, tuple(s.labels.items()), s.value)
            for family in text_string_to_metric_families(content)
            for s in family.samples
        }

    assert said(merge([one])) == said(one)
    assert merge([]) == "\n"
