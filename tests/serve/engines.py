"""A tiny model, requests to an engine, and what must hold between its steps. Used by tests here."""

from collections import Counter

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.ops.paged_attention import PAGE_SIZE
from paddle_ernie.serve.engine.engine import Engine
from paddle_ernie.serve.engine.streams import join_outputs
from paddle_ernie.serve.types import GenerateRequest, RequestOutput, SamplingParams

TEXT = ["def main():\n    return 42\n", "naïve café, smörgåsbord, 日本語の文章, 🙂🙃\n"]

TINY = ModelConfig(
    vocab_size=512,  # padded: the tokenizer has about 340
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    moe_num_experts=8,
    moe_k=2,
    moe_intermediate_size=16,
    moe_num_shared_experts=1,
    moe_layer_start_index=1,
    max_position_embeddings=8192,  # servers of the tests take less
    initializer_range=0.3,
)


def request(name: str, prompt, *, routes: bool = False, client: str = "", **sampling):
    """A GenerateRequest, greedy unless told."""
    sampling = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 8, **sampling}
    return GenerateRequest(name, tuple(prompt), SamplingParams(**sampling), routes, client)


def run_all(
    engine: Engine, steps: int | None = None, outputs: dict[str, RequestOutput] | None = None
) -> dict[str, RequestOutput]:
    """Step until nothing is left, or so many times; outputs of each request joined to one, with
    those that came before.
    """
    outputs = dict(outputs or {})
    while engine.has_work and steps != 0:
        steps = None if steps is None else steps - 1
        for output in engine.step():
            before = outputs.get(output.request_id)
            assert before is None or before.finish_reason is None, "an output after the last"
            parts = [output] if before is None else [before, output]
            outputs[output.request_id] = join_outputs(parts)
        check_invariants(engine)
    return outputs


def check_invariants(engine: Engine) -> None:
    """Every page is held as often as running sequences and the cache hold it."""
    scheduler, cache = engine.scheduler, engine.scheduler.cache
    held = Counter(page for s in scheduler.running for page in s.pages)
    users = Counter(key for s in scheduler.running for key in s.keys[: s.known])
    for key, entry in cache._entries.items():
        held[entry.page] += 1
        assert entry.users == users[key]
        assert (key in cache._idle) == (entry.users == 0)
    assert not set(users) - set(cache._entries)
    references = cache.pages._references
    assert [held[page] for page in range(len(references))] == references
    assert cache.pages.num_free == references.count(0)
    for sequence in scheduler.running:
        assert sequence.state == "running"
        assert sequence.computed <= len(sequence.pages) * PAGE_SIZE
        assert len(sequence.ids) <= sequence.max_len
    assert len(scheduler.running) <= engine.options.max_num_seqs
    ages = [s.arrival for s in scheduler.running]
    assert ages == sorted(ages)
    known = {s.request_id for s in (*scheduler.running, *scheduler.waiting())}
    assert known == set(engine._sequences)
    assert set(scheduler._parked) <= set(scheduler._pending)
    assert all(worker in scheduler.running for worker in scheduler._pending.values())


def check_empty(engine: Engine) -> None:
    """Nothing is left of requests but what the prefix cache remembers."""
    check_invariants(engine)
    scheduler = engine.scheduler
    assert not engine._sequences and not scheduler.running and not scheduler.num_waiting
    assert not scheduler._pending and not scheduler._parked and not scheduler._queues
    assert scheduler.cache.num_available == scheduler.cache.pages.num_pages
