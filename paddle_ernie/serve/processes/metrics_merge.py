"""Adds up the metrics of several processes, for the front of `--workers N`.

Counts, sizes and histogram buckets add up; rates and shares are averaged; of versions and start
times the lowest counts (the fleet is as old as its oldest member).
"""

from collections.abc import Iterable, Sequence

from prometheus_client.parser import text_string_to_metric_families

MEANS = frozenset(
    {"available_gpu_resource", "gpu_cache_usage_perc", "hit_token_rate", "hit_req_rate"}
)
LOWEST = frozenset(
    {"weight_version", "start_time_seconds", "process_start_time_seconds", "process_max_fds"}
)
HIGHEST = frozenset({"is_paused"})

Key = tuple[str, tuple[tuple[str, str], ...]]


def merge(texts: Iterable[str]) -> str:
    """One text for all; the order is that of the first text a metric occurs in."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, dict[Key, list[float]]] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            counter = "_total" if family.type == "counter" else ""
            heads.setdefault(
                family.name,
                [
                    f"# HELP {family.name}{counter} {_escape(family.documentation)}",
                    f"# TYPE {family.name}{counter} {family.type}",
                ],
            )
            values = samples.setdefault(family.name, {})
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                values.setdefault(key, []).append(sample.value)
    lines = []
    for family_name, head in heads.items():
        lines += head
        for (name, labels), values in samples[family_name].items():
            lines.append(f"{name}{_labels(labels)} {float(_together(family_name, values))!r}")
    return "\n".join(lines) + "\n"


def _together(family: str, values: Sequence[float]) -> float:
    name = family.rpartition(":")[2]
    if name in MEANS:
        return sum(values) / len(values)
    if name in LOWEST:
        return min(values)
    return max(values) if name in HIGHEST or name.endswith("_created") else sum(values)


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    inside = ",".join(f'{name}="{_escape(value, quotes=True)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""


def _escape(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
