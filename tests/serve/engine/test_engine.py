"""The engine against isolated runs, the model itself, and what must never happen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import load_arrays
from paddle_ernie.ops import library
from paddle_ernie.ops.arrays import tensor, view
from paddle_ernie.ops.token_logprobs import logprobs_of_logits
from paddle_ernie.serve.engine.control import KV_CACHE, WEIGHTS, EngineFullError
from paddle_ernie.serve.types import FinishReason, VersionSpan
from paddle_ernie.utils.errors import CheckpointError, InputError
from tests.serve.engines import TINY, check_empty, check_invariants, request, run_all

PROMPT = tuple(range(40, 240))

promised_bits = pytest.mark.skipif(
    not library.loaded(), reason="the reference operators promise no bits; a compiler is missing"
)


def same(found, wanted) -> None:
    """Bit for bit."""
    assert found.token_ids == wanted.token_ids
    assert found.text == wanted.text
    assert found.logprobs == wanted.logprobs
    assert found.prompt_logprobs == wanted.prompt_logprobs
    assert found.finish_reason == wanted.finish_reason
    if wanted.routes is None:
        assert found.routes is None
    else:
        np.testing.assert_array_equal(found.routes, wanted.routes)


requests = st.lists(
    st.builds(
        lambda common, own, sampling, routes, client: {
            "prompt": PROMPT[:common] + tuple(own), "routes": routes, "client": client, **sampling,
        },
        st.sampled_from([1, 10, 64, 70, 128, 150]),
        st.lists(st.integers(32, 339), max_size=20),
        st.fixed_dictionaries(
            {"max_tokens": st.integers(1, 70), "temperature": st.sampled_from([0.0, 0.7, 1.5])},
            optional={
                "seed": st.integers(0, 3), "top_p": st.just(0.8), "logprobs": st.integers(0, 3),
                "prompt_logprobs": st.integers(0, 2), "repetition_penalty": st.just(1.2),
                "stop": st.just(("a", "e\n")), "min_tokens": st.just(1),
                "ignore_eos": st.just(False),
            },
        ),
        st.booleans(),
        st.sampled_from(["a", "b"]),
    ),
    min_size=1,
    max_size=7,
)  # fmt: skip
shapes = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.sampled_from([6, 17, 64, 300]),
        "num_pages": st.sampled_from([5, 8, 40]),
        "enable_prefix_caching": st.booleans(),
        "enable_chunked_prefill": st.booleans(),
        "keep_routes": st.booleans(),
        "precision": st.sampled_from(["fp32", "bf16", "fp8"]),
    }
)


@promised_bits
@settings(max_examples=60)
@given(requests, shapes, st.lists(st.integers(0, 20), min_size=7, max_size=7))
def test_a_result_does_not_depend_on_what_else_runs(make_engine, wanted, shape, arrivals):
    """Tokens, bits of log-probabilities, routes: whatever is beside it, cached, cut, preempted."""
    made = [request(str(i), **fields) for i, fields in enumerate(wanted)]
    engine = make_engine(**shape)
    outputs, waiting, clock = {}, sorted(zip(arrivals, made, strict=False), key=lambda p: p[0]), 0
    while waiting or engine.has_work:
        while waiting and (waiting[0][0] <= clock or not engine.has_work):
            engine.add(waiting.pop(0)[1])
        clock += 1
        outputs = run_all(engine, steps=1, outputs=outputs)
    check_empty(engine)
    alone = make_engine(
        max_num_seqs=1, max_num_batched_tokens=512, enable_prefix_caching=False,
        precision=shape["precision"],
    )  # fmt: skip
    for one in made:
        alone.add(one)
        same(outputs[one.request_id], run_all(alone)[one.request_id])


@promised_bits
def test_log_probabilities_and_routes_are_those_of_the_training_forward(make_engine, make_arrays):
    engine = make_engine(max_num_batched_tokens=50)
    engine.add(request("0", PROMPT[:90], logprobs=0, prompt_logprobs=0, max_tokens=40, routes=True))
    engine.add(request("1", PROMPT[:70], temperature=0.8, temp_scaled_logprobs=True, logprobs=0))
    outputs = run_all(engine)
    model = ErnieMoeModel(TINY, seed=None)
    load_arrays(model, make_arrays())
    for name, length, temperature in (("0", 90, 1.0), ("1", 70, 0.8)):
        output = outputs[name]
        ids = np.array(PROMPT[:length] + output.token_ids)
        logits = view(model.logits(ids[None, :-1]))[0]
        logprobs = view(logprobs_of_logits(tensor(logits), ids[1:], temperature)[0])
        drawn = np.float32([entry.logprob for entry in output.logprobs])
        np.testing.assert_array_equal(drawn, logprobs[length - 1 :])
        if output.prompt_logprobs:
            assert output.prompt_logprobs[0] is None
            scored = np.float32([entry.logprob for entry in output.prompt_logprobs[1:]])
            np.testing.assert_array_equal(scored, logprobs[: length - 1])
    assert outputs["0"].routes.shape == (129, 2, 2)
    assert outputs["0"].routes.max() < 8


def test_a_group_runs_its_prompt_once_and_shares_its_pages(make_engine):
    engine = make_engine(max_num_batched_tokens=40)
    for i in range(6):
        engine.add(request(str(i), PROMPT[:140], temperature=1.0, seed=i, routes=True))
    outputs = run_all(engine, steps=3)
    assert len(engine.scheduler.running) == 1
    assert not outputs
    outputs = run_all(engine, outputs=outputs)
    assert [outputs[str(i)].cached_tokens for i in range(6)] == [0] + [128] * 5
    assert len({output.token_ids for output in outputs.values()}) == 6
    assert engine.stats().computed_tokens == 140 + 5 * 12 + 6 * 7
    assert all(output.routes.shape == (147, 2, 2) for output in outputs.values())


def test_requests_behind_a_group_do_not_wait_with_it(make_engine):
    engine = make_engine(max_num_batched_tokens=30)
    for i in range(3):
        engine.add(request(str(i), PROMPT[:140]))
    engine.add(request("other", PROMPT[7:17], max_tokens=1))
    outputs = run_all(engine, steps=6)
    assert outputs["other"].finish_reason is FinishReason.LENGTH
    assert len(engine.scheduler.running) == 3


def test_a_prompt_that_is_whole_in_the_cache_still_runs_its_last_page(make_engine):
    engine = make_engine()
    found = []
    for name in "01":
        engine.add(request(name, PROMPT[:128], logprobs=0, routes=True))
        found.append(run_all(engine)[name])
    same(*found)
    assert found[1].cached_tokens == 64


def test_siblings_go_on_if_the_one_that_computes_leaves(make_engine):
    engine = make_engine(max_num_batched_tokens=30)
    for i in range(3):
        engine.add(request(str(i), PROMPT[:140]))
    run_all(engine, steps=2)
    engine.abort(["0"])
    outputs = run_all(engine)
    assert outputs["0"].finish_reason is FinishReason.ABORT
    assert [outputs[i].cached_tokens for i in "12"] == [0, 128]


def test_a_conversation_finds_its_own_answers_in_the_cache(make_engine):
    engine = make_engine()
    engine.add(request("0", PROMPT[:60], max_tokens=80))
    (first,) = run_all(engine).values()
    engine.add(request("1", PROMPT[:60] + first.token_ids + (41, 42), max_tokens=2))
    (second,) = run_all(engine).values()
    assert second.cached_tokens == 128


def test_preempted_requests_end_and_the_oldest_is_never_among_them(make_engine):
    engine = make_engine(num_pages=6, enable_prefix_caching=False)
    for i in range(4):
        engine.add(request(str(i), PROMPT[i : i + 50], max_tokens=150))
    oldest, done = engine._sequences["0"], []
    while engine.has_work:
        done += [o.request_id for o in engine.step() if o.finish_reason]
        check_invariants(engine)
        assert "0" in done or oldest.state == "running"
    assert done == ["0", "1", "2", "3"]
    assert engine.stats().preemptions > 0
    check_empty(engine)


@promised_bits
def test_preemption_in_the_middle_of_a_scored_prompt(make_engine):
    """Chunks of the second run straddle what is known of the first."""
    pressed = make_engine(
        num_pages=5, max_num_seqs=2, max_num_batched_tokens=2, enable_prefix_caching=False
    )
    roomy = make_engine(max_num_seqs=2, max_num_batched_tokens=100)
    made = [
        request("first", PROMPT[:60], max_tokens=100),
        request("second", PROMPT[:180], prompt_logprobs=1, routes=True),
    ]
    results = []
    for engine in (pressed, roomy):
        for one in made:
            engine.add(one)
        results.append(run_all(engine)["second"])
    assert pressed.stats().preemptions == 1
    same(*results)


@promised_bits
def test_preempted_requests_have_the_routes_and_tokens_of_others(make_engine):
    results = []
    for num_pages in (6, 40):
        engine = make_engine(num_pages=num_pages, max_num_batched_tokens=100)
        for i in range(4):
            prompt = PROMPT[i : i + 50]
            engine.add(request(str(i), prompt, max_tokens=150, routes=True, logprobs=0))
        results.append(run_all(engine))
        assert (engine.stats().preemptions > 0) == (num_pages == 6)
    for name in "0123":
        same(results[0][name], results[1][name])


def test_a_large_request_is_not_passed_over_by_small_ones(make_engine):
    engine = make_engine(num_pages=7, max_num_seqs=6)
    engine.add(request("before", PROMPT[:20], max_tokens=60))
    run_all(engine, steps=1)
    engine.add(request("large", range(40, 340), max_tokens=100))
    for i in range(30):
        engine.add(request(f"small {i}", PROMPT[i : i + 10], max_tokens=30))
    done = []
    while engine.has_work:
        done += [o.request_id for o in engine.step() if o.finish_reason]
    assert done[:2] == ["before", "large"]


def test_one_client_with_many_requests_does_not_hold_up_another(make_engine):
    engine = make_engine(max_num_seqs=2)
    for i in range(40):
        engine.add(request(f"many {i}", PROMPT[i : i + 30], client="many"))
    run_all(engine, steps=3)
    for i in range(3):
        engine.add(request(f"few {i}", PROMPT[:30], client="few"))
    done = []
    while engine.has_work:
        done += [o.request_id for o in engine.step() if o.finish_reason]
    assert all(done.index(f"few {i}") < 14 for i in range(3))


def test_decoding_goes_on_while_a_long_prompt_is_run(make_engine):
    engine = make_engine(max_num_batched_tokens=20)
    engine.add(request("decodes", PROMPT[:5], max_tokens=30))
    run_all(engine, steps=1)
    engine.add(request("long", PROMPT[:190], max_tokens=1))
    for _ in range(10):
        outputs = engine.step()
        assert "decodes" in {output.request_id for output in outputs}
    assert "long" in {output.request_id for output in outputs}


@promised_bits
@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_weights_change_between_two_tokens(make_engine, make_weights, kv):
    engine = make_engine(max_num_batched_tokens=100)
    engine.add(request("0", PROMPT[:90], max_tokens=40, logprobs=0, routes=True))
    before = run_all(engine, steps=11)["0"]
    engine.update_weights(make_weights(5, seed=1), "keep", kv)
    engine.add(request("1", PROMPT[:90], max_tokens=40))
    outputs = run_all(engine, outputs={"0": before})
    found = outputs["0"]
    assert found.version_spans == (VersionSpan(0, 11, 0), VersionSpan(11, 40, 5))
    assert outputs["1"].version_spans == (VersionSpan(0, 40, 5),)
    assert outputs["1"].cached_tokens == (0 if kv == "keep" else 64)
    assert found.token_ids[:11] == before.token_ids
    assert found.routes.shape == (129, 2, 2)
    check_empty(engine)
    if kv == "recompute":  # the rest is what the new weights alone say to prompt and beginning
        fresh = make_engine(make_weights(5, seed=1))
        fresh.add(request("0", PROMPT[:90] + found.token_ids[:11], max_tokens=29, logprobs=0))
        rest = run_all(fresh)["0"]
        assert rest.token_ids == found.token_ids[11:]
        assert rest.logprobs == found.logprobs[11:]


def test_new_weights_never_meet_old_pages(make_engine, make_weights):
    engine = make_engine()
    engine.add(request("0", PROMPT[:130], max_tokens=70))
    run_all(engine, steps=20)
    engine.update_weights(make_weights(1, seed=1))
    run_all(engine)
    engine.add(request("1", PROMPT[:130], logprobs=0))
    fresh = make_engine(make_weights(1, seed=1))
    fresh.add(request("1", PROMPT[:130], logprobs=0))
    same(run_all(engine)["1"], run_all(fresh)["1"])


def test_weights_of_another_model_are_refused_and_nothing_changes(make_engine, make_weights):
    engine = make_engine()
    engine.add(request("0", PROMPT[:10]))
    engine.step()
    with pytest.raises(CheckpointError, match="hidden_size=48"):
        engine.update_weights(make_weights(5, hidden_size=48), "abort")
    assert engine.info.version == 0
    (output,) = run_all(engine).values()
    assert output.finish_reason is FinishReason.LENGTH


def test_pause_keeps_or_ends_and_resume_goes_on(make_engine):
    engine = make_engine()
    engine.add(request("0", PROMPT[:10], max_tokens=20))
    first = run_all(engine, steps=5)
    engine.pause(abort=False)
    assert not engine.has_work and not engine.step()
    engine.add(request("1", PROMPT[:10]))
    engine.resume()
    outputs = run_all(engine, outputs=first)
    assert len(outputs["0"].token_ids) == 20 and len(outputs["1"].token_ids) == 8
    engine.add(request("2", PROMPT[:100]))
    run_all(engine, steps=2)
    engine.pause(abort=True)
    (output,) = run_all(engine).values()
    assert output.finish_reason is FinishReason.ABORT
    check_empty(engine)
    assert engine.stats().cached_pages == 0


def test_sleep_frees_memory_and_wakeup_brings_it_back(make_engine, weights):
    engine = make_engine()
    engine.add(request("0", PROMPT[:70]))
    before = run_all(engine)["0"]
    engine.add(request("1", PROMPT[:70]))
    engine.sleep()
    assert [o.finish_reason for o in engine.step()] == [FinishReason.ABORT]
    assert engine.weights.model is None and engine.stats().total_pages == 0
    engine.add(request("0", PROMPT[:70]))
    with pytest.raises(InputError, match="asleep"):
        engine.resume()
    engine.wakeup([KV_CACHE])
    assert engine.paused
    engine.wakeup([WEIGHTS], weights)
    assert not engine.paused
    same(run_all(engine)["0"], before)


def test_how_requests_end(make_engine, tokenizer):
    engine = make_engine()
    engine.add(request("free", PROMPT[:10], max_tokens=12))
    free = run_all(engine)["free"]
    assert free.finish_reason is FinishReason.LENGTH
    third = free.token_ids[2]
    assert third not in free.token_ids[:2]
    ends = {
        "id": {"stop_token_ids": frozenset({third})},
        "late": {"stop_token_ids": frozenset({third}), "min_tokens": 12},
        "shown": {"stop_token_ids": frozenset({third}), "include_stop_str_in_output": True},
        "bias": {"logit_bias": {tokenizer.eos_id: 100.0}, "ignore_eos": False},
        "no eos": {"logit_bias": {tokenizer.eos_id: 100.0}},
    }
    for name, sampling in ends.items():
        engine.add(request(name, PROMPT[:10], **{"max_tokens": 12, **sampling}))
    out = run_all(engine)
    assert out["id"].token_ids == free.token_ids[:3]
    assert out["id"].finish_reason is FinishReason.STOP
    assert out["shown"].text.startswith(out["id"].text)
    beginning = free.text[:3]
    assert beginning and beginning not in free.text[1:]
    for name, min_tokens in (("string", 0), ("late string", 12)):
        engine.add(
            request(
                name, PROMPT[:10], max_tokens=12, min_tokens=min_tokens, stop=(beginning,),
                ignore_eos=True,
            )
        )  # fmt: skip
    out |= run_all(engine)
    assert (out["string"].text, out["string"].finish_reason) == ("", FinishReason.STOP)
    assert out["late string"].text == free.text
    assert len(out["late"].token_ids) == 12
    assert third not in out["late"].token_ids
    assert out["bias"].token_ids == (tokenizer.eos_id,) and out["bias"].text == ""
    assert out["no eos"].token_ids == (tokenizer.eos_id,) * 12


def test_a_prompt_as_long_as_may_be_has_no_answer(make_engine):
    engine = make_engine(max_model_len=64)
    engine.add(request("0", PROMPT[:64], prompt_logprobs=0))
    output = run_all(engine)["0"]
    assert (output.token_ids, output.finish_reason) == ((), FinishReason.LENGTH)
    assert len(output.prompt_logprobs) == 64


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ((), {}, "empty"),
        ((1, 340), {}, "prompt token 340; expected ids of 0 to 339"),
        ((-1,), {}, "prompt token -1"),
        ((1,) * 513, {}, "513 tokens; expected at most 512"),
        ((1,) * 300, {"max_tokens": 100}, "take 7 pages of 64, the server has 6"),
        ((1,), {"temperature": -1.0}, "temperature is -1.0"),
    ],
)
def test_what_can_never_be_served_is_refused_at_once(make_engine, prompt, sampling, message):
    engine = make_engine(num_pages=6)
    with pytest.raises(InputError, match=message):
        engine.add(request("0", prompt, **sampling))
    check_empty(engine)


def test_one_request_too_many_and_a_name_twice(make_engine):
    engine = make_engine(max_num_seqs=2, max_waiting=1)
    for name in "abc":
        engine.add(request(name, (1,)))
    with pytest.raises(EngineFullError, match="3 requests"):
        engine.add(request("d", (1,)))
    with pytest.raises(InputError, match="'a' is here already"):
        engine.add(request("a", (1,)))


def test_a_dense_model_has_no_routes(make_engine, make_weights):
    engine = make_engine(make_weights(moe_num_experts=0), keep_routes=True)
    for name in "01":
        engine.add(request(name, PROMPT[:70], routes=True))
        output = run_all(engine)[name]
        assert output.routes is None
    assert output.cached_tokens == 64


def test_an_aborted_request_has_the_routes_of_what_was_run(make_engine):
    engine = make_engine()
    engine.add(request("0", PROMPT[:100], routes=True))
    engine.add(request("1", PROMPT[:10], routes=True))
    run_all(engine, steps=2)
    engine.abort()
    outputs = run_all(engine)
    routes = outputs["0"].routes
    assert routes.shape == (99, 2, 2)
    assert routes[:60].max() < 8 and (routes[70:] == 255).all()
    assert outputs["1"].routes is None


def test_a_broken_model_ends_its_requests_with_an_error(make_engine, weights):
    engine = make_engine()
    step = weights.model.step

    class Broken:
        config, num_moe_layers, new_pages = weights.model.config, 2, weights.model.new_pages

        def step(self, *args, **options):
            output = step(*args, **options)
            output.logits_RV[:] = np.nan
            return output

    engine.weights = type(weights)(**{**vars(weights), "model": Broken()})
    engine.add(request("0", (1, 2)))
    (output,) = run_all(engine).values()
    assert output.finish_reason is FinishReason.ERROR
    assert "not finite" in output.error
    check_empty(engine)


def test_random_aborts_leave_nothing_behind(make_engine):
    rng = np.random.default_rng(0)
    engine = make_engine(num_pages=12, max_num_batched_tokens=24)
    left, here, ends = list(range(200)), [], {}
    while left or engine.has_work:
        for number in left[: rng.integers(0, 4)]:
            start, length = rng.integers(0, 3) * 20, rng.integers(1, 140)
            engine.add(
                request(
                    str(number), PROMPT[start : start + length], client=str(number % 3),
                    max_tokens=int(rng.integers(1, 60)), temperature=1.0, routes=number % 2 == 0,
                )
            )  # fmt: skip
            here.append(str(left.pop(0)))
        if here and rng.random() < 0.15:
            engine.abort([here[number] for number in rng.integers(0, len(here), 2)])
        for output in engine.step():
            if output.finish_reason:
                assert (
                    ends.setdefault(output.request_id, output.finish_reason) is output.finish_reason
                )
                here.remove(output.request_id)
        check_invariants(engine)
    assert len(ends) == 200 and not here
    assert {FinishReason.ABORT, FinishReason.LENGTH} == set(ends.values())
    assert engine.stats().preemptions > 0
    check_empty(engine)
