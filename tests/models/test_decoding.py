import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.models.decoding import generate, sample
from paddle_ernie.models.plan import full_plan
from paddle_ernie.utils.errors import InputError


@pytest.fixture(scope="module")
def trained(make_model, make_rows):
    """A few steps of plain gradient descent, so that logits are not those of noise."""
    model, rows = make_model(), make_rows(4)
    for _ in range(15):
        output = model.loss(*rows, denominator=float((rows.labels >= 0).sum()))
        output.total.backward()
        for tensor in model.parameters():
            if tensor.grad is not None:
                tensor.set_value(tensor - 0.3 * tensor.grad)
        model.clear_gradients(set_to_zero=False)
    return model


@pytest.mark.parametrize("plan_top_k", [None, 1])
def test_greedy_with_and_without_cache(trained, plan_top_k):
    prompt = [5, 9, 2]
    cached = list(
        generate(trained, prompt, max_new_tokens=25, temperature=0.0, plan_top_k=plan_top_k)
    )
    ids = list(prompt)
    for _ in range(25):
        plan = full_plan(1, 4, plan_top_k or 2)
        ids.append(int(trained.logits(np.array([ids]), plan=plan).numpy()[0, -1].argmax()))
    assert cached == ids[3:]
    assert len(set(cached)) > 3


def test_same_seed_same_text(trained):
    def draw(seed: int) -> list[int]:
        return list(generate(trained, [1], max_new_tokens=20, temperature=1.0, seed=seed))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_stop_ids_end_the_text_and_are_not_part_of_it(trained):
    every = list(generate(trained, [5, 9, 2], max_new_tokens=20, temperature=0.0))
    stop = every[7]
    short = list(generate(trained, [5, 9, 2], max_new_tokens=20, temperature=0.0, stop_ids={stop}))
    assert short == every[: every.index(stop)]


def test_the_longest_sequence_is_a_limit(make_model):
    model = make_model(max_position_embeddings=8)
    assert len(list(generate(model, [1, 2, 3], max_new_tokens=50, temperature=0.0))) == 5
    with pytest.raises(InputError, match="9 tokens; expected 1 to max_position_embeddings"):
        generate(model, list(range(9)), max_new_tokens=1, temperature=0.0)


def test_gradients_stay_on_for_the_caller(make_model):
    for _ in generate(make_model(), [1, 2], max_new_tokens=2, temperature=0.0):
        assert paddle.is_grad_enabled()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p is 0.0"),
        ({"temperature": 1.0, "top_k": -1}, "top_k is -1"),
        ({"temperature": 0.0, "plan_top_k": 9}, "9 experts per token; expected 1 to 8"),
    ],
)
def test_bad_options(make_model, options, message):
    with pytest.raises(InputError, match=message):
        generate(make_model(), [1], max_new_tokens=1, **options)


def test_empty_prompt(make_model):
    with pytest.raises(InputError, match="0 tokens"):
        generate(make_model(), [], max_new_tokens=1, temperature=0.0)


LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15], np.float32))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.1, 0.4, 0.05, 0.3, 0.15]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_p": 0.69}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_p": 0.71}, [0, 8 / 17, 0, 6 / 17, 3 / 17]),
        ({"top_k": 3, "top_p": 0.5}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"temperature": 0.5}, np.array([0.01, 0.16, 0.0025, 0.09, 0.0225]) / 0.285),
        ({"top_p": 1e-9}, [0, 1, 0, 0, 0]),
    ],
)
def test_sampling_frequencies(options, expected):
    options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, **options}
    rng = np.random.default_rng(0)
    draws = [sample(LOGITS, rng=rng, **options) for _ in range(4000)]
    frequencies = np.bincount(draws, minlength=5) / 4000
    np.testing.assert_allclose(frequencies, expected, atol=0.03)
    assert not frequencies[np.asarray(expected) == 0].any()


@settings(max_examples=50, deadline=None)
@given(
    logits=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=20),
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 25),
    top_p=st.floats(1e-6, 1),
)
def test_any_sampling_gives_an_id(logits, temperature, top_k, top_p):
    drawn = sample(
        np.array(logits, np.float32), temperature, top_k, top_p, np.random.default_rng(0)
    )
    assert 0 <= drawn < len(logits)
