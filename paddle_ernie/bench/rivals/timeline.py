"""When each token of each request came: the same clock for our engine and for the rivals'.

    timeline = Timeline()              starts now: all requests are about to be handed over
    timeline.note(request, 1)          after every step, for each request that got tokens
    describe([timeline, ...])          the answer of a process about its repeats

Imports the standard library only: the rivals' environments have no more.
"""

import math
import time
from itertools import pairwise

try:
    from paddle_ernie.bench.rivals.protocol import summary
except ImportError:  # run as a folder, in an environment without us
    from protocol import summary

PERCENTILES = (50, 90, 99)


class Timeline:
    """Seconds since the start, one per token, by request."""

    def __init__(self, started=None):
        self.started = time.perf_counter() if started is None else started
        self.times = {}

    def note(self, request, tokens, at=None):
        """`tokens` new ones of a request came now, or `at` a time of `time.perf_counter`."""
        seconds = (time.perf_counter() if at is None else at) - self.started
        self.times.setdefault(request, []).extend([seconds] * tokens)

    @property
    def whole(self):
        """Until the last token of all."""
        return max(times[-1] for times in self.times.values())

    @property
    def prefill(self):
        """Until every request has its first token."""
        return max(self.firsts())

    @property
    def decode(self):
        """Of a round of one token for every request, after the first tokens."""
        rounds = max(len(times) for times in self.times.values()) - 1
        return (self.whole - self.prefill) / max(rounds, 1)

    def firsts(self):
        """Time to first token of each request."""
        return [times[0] for times in self.times.values()]

    def gaps(self):
        """Time between neighbouring tokens of a request, over all requests."""
        return [
            later - earlier for times in self.times.values() for earlier, later in pairwise(times)
        ]


def describe(timelines):
    """Best and median over repeats; the distributions are those of the fastest repeat."""
    fastest = min(timelines, key=lambda timeline: timeline.whole)
    return {
        "whole": summary([timeline.whole for timeline in timelines]),
        "prefill": summary([timeline.prefill for timeline in timelines]),
        "decode": summary([timeline.decode for timeline in timelines]),
        "first_token": percentiles(fastest.firsts()),
        "between_tokens": percentiles(fastest.gaps()),
    }


def percentiles(values):
    """Nearest-rank percentiles: each is a time that was measured."""
    ordered = sorted(values) or [0.0]
    return {
        f"p{share}": ordered[max(0, math.ceil(share / 100 * len(ordered)) - 1)]
        for share in PERCENTILES
    }
