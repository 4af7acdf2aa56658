"""Which sequences run in the next step, by how many tokens, on which pages. Called by the engine.

    add --> queue of its client --> running --> finished
                |  ^      ^            |
                v  |      +------------+  preempted: pages have run out; its tokens are run again
               parked   another sequence is computing pages that this one can take over

A step has a budget of tokens: one for every running sequence that decodes, the rest for prompts.
Between clients the least served one (in tokens run) comes first, among equals the oldest request.

Nobody starves: a waiting request is passed over neither for its size nor by those of its client
that came later; what is preempted is the youngest, so that the oldest running one always goes on;
and one that does not fit into all pages together is not let in (`Engine.add`).
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from paddle_ernie.ops.paged_attention import PAGE_SIZE, pages_for
from paddle_ernie.serve.engine.fairness import Fairness
from paddle_ernie.serve.engine.options import EngineOptions
from paddle_ernie.serve.engine.prefix_cache import PrefixCache
from paddle_ernie.serve.engine.sequence import Sequence, State

RUNNING_PER_RESERVED_PAGE = 4
"""Running sequences take a page every 64 steps; a newcomer leaves one for each four of them, so
that it is not preempted at once."""
SCORED_ROWS = 128
"""Tokens of a scored prompt in one step: logits of 100,000 tokens take 50 MB then."""


class Scheduler:
    """Owns the states of sequences and their pages."""

    def __init__(self, options: EngineOptions, cache: PrefixCache) -> None:
        self.cache = cache
        self.running: list[Sequence] = []
        """By age, oldest first."""
        self.preemptions = 0
        self._options = options
        self._fairness = Fairness()
        self._queues: dict[str, OrderedDict[str, Sequence]] = {}
        self._parked: dict[bytes, dict[str, Sequence]] = {}
        self._pending: dict[bytes, Sequence] = {}
        """Keys of pages that running sequences are about to fill, and who fills them."""
        self._arrivals = 0

    @property
    def num_waiting(self) -> int:
        """Requests in queues, and parked ones."""
        return sum(map(len, self._queues.values())) + sum(map(len, self._parked.values()))

    def waiting(self) -> Iterator[Sequence]:
        """Those that do not run."""
        for group in (*self._queues.values(), *self._parked.values()):
            yield from group.values()

    def add(self, sequence: Sequence) -> None:
        """A new request, at the end of its client's queue."""
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._fairness.enter(sequence.request.client)
        self._queue(sequence.request.client)[sequence.request_id] = sequence

    def schedule(self) -> list[tuple[Sequence, int]]:
        """What to run now: (sequence, number of its next tokens), with pages for all of them."""
        decoding = self._grow_decoding()
        budget = self._options.max_num_batched_tokens - len(decoding)
        step: list[tuple[Sequence, int]] = []
        for sequence in decoding:
            step.append((sequence, 1))
            self._fairness.charge(sequence.request.client, 1)
        if len(decoding) < len(self.running):
            prompts = [s for s in self.running if s.remaining > 1]
            for sequence in sorted(prompts, key=self._turn):
                budget -= self._take(sequence, budget, step)
        while budget > 0 and (sequence := self._admit()):
            budget -= self._take(sequence, budget, step)
            if step[-1][0] is not sequence:
                break  # it did not fit into this step, and later ones would not go before it
        return step

    def computed(self, sequence: Sequence, count: int) -> None:
        """`count` more tokens of a sequence are in its pages; full pages become known."""
        sequence.computed += count
        full = sequence.computed // PAGE_SIZE
        if full <= sequence.known or sequence.mixed or not self.cache.enabled:
            return
        keys = sequence.page_keys(self.cache.root, full)
        for page in range(sequence.known, full):
            key, routes = keys[page], sequence.page_routes(page)
            sequence.pages[page] = self.cache.add(key, sequence.pages[page], routes)
            if self._pending.get(key) is sequence:
                self._settle(key)
        sequence.known = full

    def finish(self, sequence: Sequence) -> None:
        """It is over, wherever it is: pages and places are free."""
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence.state is State.PARKED:
            self._unlink_parked(sequence)
        else:
            self._unlink(sequence)
        sequence.state = State.FINISHED
        self._fairness.leave(sequence.request.client)

    def preempt_all(self) -> None:
        """All running sequences go back to their queues and will be run again."""
        for sequence in reversed(self.running[:]):
            self._preempt(sequence)

    def forget_pages(self, version: int, moe_k: int) -> None:
        """The weights are others: nothing old is shared any more. What runs keeps its pages."""
        for key in list(self._pending):
            self._settle(key)
        for sequence in self.running:
            sequence.mixed, sequence.known = True, 0
        for sequence in (*self.running, *self.waiting()):
            sequence.keys = []
        self.cache.clear(version, moe_k)

    def _grow_decoding(self) -> list[Sequence]:
        """Running sequences with one token to run, each with a page for it."""
        decoding = []
        for sequence in self.running[:]:
            if sequence.state is not State.RUNNING or len(sequence.ids) - sequence.computed != 1:
                continue
            if sequence.computed == len(sequence.pages) * PAGE_SIZE and not self._grow(sequence):
                continue
            decoding.append(sequence)
        return decoding

    def _grow(self, sequence: Sequence) -> bool:
        """One more page, if need be from the youngest; False if that is the sequence itself."""
        while not self.cache.num_available:
            youngest = self.running[-1]
            self._preempt(youngest)
            self.preemptions += 1
            if youngest is sequence:
                return False
        sequence.pages += self.cache.allocate(1)
        return True

    def _take(self, sequence: Sequence, budget: int, step: list[tuple[Sequence, int]]) -> int:
        """Put the next tokens of a prompt into the step; how many."""
        count = min(sequence.remaining, budget)
        if sequence.wants_prompt_logprobs:
            count = min(count, SCORED_ROWS)
        if not self._options.enable_chunked_prefill:
            # A prompt above the budget runs whole all the same, in a step without other prompts.
            whole, fresh = sequence.remaining, all(number == 1 for _, number in step)
            count = whole if whole <= budget or (budget > 0 and fresh) else 0
        if count > 0:
            step.append((sequence, count))
            self._fairness.charge(sequence.request.client, count)
        return max(count, 0)

    def _admit(self) -> Sequence | None:
        """Start the next waiting sequence, if a place and its pages are free."""
        while self._queues and len(self.running) < self._options.max_num_seqs:
            sequence = min(map(_first, self._queues.values()), key=self._turn)
            keys = self._prompt_keys(sequence)
            hits = self.cache.hits(keys, routes=sequence.keep_routes)
            if sequence.wants_prompt_logprobs:
                hits = 0  # every row of the prompt is needed
            elif key := self._others_work(sequence, keys[hits:]):
                self._park(sequence, key)
                continue
            if not self._fits(sequence, keys[:hits]):
                return None
            self._start(sequence, keys, hits)
            return sequence
        return None

    def _turn(self, sequence: Sequence) -> tuple[int, int]:
        """The lower, the sooner."""
        return self._fairness.served(sequence.request.client), sequence.arrival

    def _prompt_keys(self, sequence: Sequence) -> list[bytes]:
        """Of full pages before the last token, which has to be run in any case."""
        if not self.cache.enabled or sequence.mixed:
            return []
        return sequence.page_keys(self.cache.root, (len(sequence.ids) - 1) // PAGE_SIZE)

    def _others_work(self, sequence: Sequence, missing: list[bytes]) -> bytes | None:
        """The last key of a prompt that a running sequence is computing, in a form that serves."""
        for key in reversed(missing):
            worker = self._pending.get(key)
            if worker is not None and (worker.keep_routes or not sequence.keep_routes):
                return key
        return None

    def _fits(self, sequence: Sequence, hits: list[bytes]) -> bool:
        needed = pages_for(len(sequence.ids)) - len(hits) + self.cache.num_idle(hits)
        reserve = -(-len(self.running) // RUNNING_PER_RESERVED_PAGE)
        return needed + reserve <= self.cache.num_available

    def _start(self, sequence: Sequence, keys: list[bytes], hits: int) -> None:
        self._unlink(sequence)
        for page, key in enumerate(keys[:hits]):
            entry = self.cache.use(key)
            sequence.pages.append(entry.page)
            if sequence.keep_routes and entry.routes is not None:
                sequence.add_routes(page * PAGE_SIZE, entry.routes)
        sequence.known, sequence.computed = hits, hits * PAGE_SIZE
        sequence.pages += self.cache.allocate(pages_for(len(sequence.ids)) - hits)
        for key in keys[hits:]:
            worker = self._pending.get(key)
            if worker is None or sequence.keep_routes > worker.keep_routes:
                self._pending[key] = sequence
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
        sequence.state = State.RUNNING
        at = len(self.running)
        while at and self.running[at - 1].arrival > sequence.arrival:
            at -= 1
        self.running.insert(at, sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        self._requeue([sequence])

    def _release(self, sequence: Sequence) -> None:
        """Pages go back; whoever waits for this sequence's work waits no more."""
        for key in sequence.keys[sequence.known :]:
            if self._pending.get(key) is sequence:
                self._settle(key)
        self.cache.leave(sequence.keys[: sequence.known], sequence.pages)
        sequence.pages, sequence.known, sequence.computed = [], 0, 0
        sequence.mixed = False

    def _park(self, sequence: Sequence, key: bytes) -> None:
        self._unlink(sequence)
        sequence.state, sequence.parked_at = State.PARKED, key
        self._parked.setdefault(key, {})[sequence.request_id] = sequence

    def _settle(self, key: bytes) -> None:
        """Nobody works on a page any more: it is there, or it will not be."""
        del self._pending[key]
        self._requeue(self._parked.pop(key, {}).values())

    def _requeue(self, sequences: Iterable[Sequence]) -> None:
        """To the front of their queues, the oldest first."""
        for sequence in sorted(sequences, key=lambda s: -s.arrival):
            sequence.state, sequence.parked_at = State.WAITING, None
            queue = self._queue(sequence.request.client)
            queue[sequence.request_id] = sequence
            queue.move_to_end(sequence.request_id, last=False)

    def _queue(self, client: str) -> OrderedDict[str, Sequence]:
        return self._queues.setdefault(client, OrderedDict())

    def _unlink(self, sequence: Sequence) -> None:
        client = sequence.request.client
        del self._queues[client][sequence.request_id]
        if not self._queues[client]:
            del self._queues[client]

    def _unlink_parked(self, sequence: Sequence) -> None:
        group = self._parked[sequence.parked_at]
        del group[sequence.request_id]
        if not group:
            del self._parked[sequence.parked_at]


def _first(queue: OrderedDict[str, Sequence]) -> Sequence:
    return next(iter(queue.values()))
