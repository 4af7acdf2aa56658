import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.models.inference import InferenceModel
from paddle_ernie.models.plan import full_plan
from paddle_ernie.ops import library
from paddle_ernie.ops.numerics import BF16, FP8, FP32, Recipe
from paddle_ernie.ops.paged_attention import PagedBatch, pages_for
from paddle_ernie.ops.quantise import from_e4m3
from paddle_ernie.utils.errors import InputError

RECIPES = {
    "fp32": FP32,
    "bf16": BF16,
    "fp8": FP8,
    "fp8 ue8m0": Recipe("fp8", "fp8", "fp8", power_of_two_scales=True),
}
ISAS = library.ISA_NAMES[: library.ISA_NAMES.index(library.isa()) + 1] if library.loaded() else ()
compiled = pytest.mark.skipif(
    not library.loaded(), reason="the reference operators promise no bits; a compiler is missing"
)


class Sequences:
    """Texts that an InferenceModel reads piece by piece."""

    def __init__(self, model: InferenceModel, texts: list[np.ndarray]) -> None:
        self.model, self.texts = model, texts
        self.pages = model.new_pages(sum(pages_for(len(text)) for text in texts) + 1)
        self.tables = [self.pages.allocate(pages_for(len(text))) for text in texts]
        self.lengths = [0] * len(texts)
        self.logits: list[list[np.ndarray]] = [[] for _ in texts]
        self.routes: list[list[np.ndarray]] = [[] for _ in texts]

    def step(self, new_tokens: dict[int, int]) -> None:
        """Text -> how many of its tokens come next."""
        pieces = [
            self.texts[i][self.lengths[i] : self.lengths[i] + n] for i, n in new_tokens.items()
        ]
        counts = [len(piece) for piece in pieces]
        batch = PagedBatch(
            [self.tables[i] for i in new_tokens], [self.lengths[i] for i in new_tokens], counts
        )
        ids = np.concatenate(pieces)
        rows = np.arange(len(ids))[::-1]  # any order
        output = self.model.step(ids, self.pages, batch, rows, routes=True)
        ends = np.cumsum(counts)[:-1]
        for i, logits in zip(new_tokens, np.split(output.logits_RV[::-1], ends), strict=True):
            self.logits[i].append(logits)
        if output.routes_TLK is not None:
            for i, routes in zip(new_tokens, np.split(output.routes_TLK, ends), strict=True):
                self.routes[i].append(routes)
        for i, count in zip(new_tokens, counts, strict=True):
            self.lengths[i] += count

    def run(self, rng: np.random.Generator, largest: int) -> None:
        """Random subsets by random numbers of tokens, until all is read."""
        while left := [i for i, text in enumerate(self.texts) if self.lengths[i] < len(text)]:
            chosen = rng.permutation(left)[: rng.integers(1, len(left) + 1)]
            self.step({int(i): int(rng.integers(1, largest + 1)) for i in chosen})


@paddle.no_grad()
def expected_logits(model, text: np.ndarray, recipe: Recipe, moe_k: int) -> np.ndarray:
    """The training forward of one text."""
    model.recipe = recipe
    plan = full_plan(1, model.config.num_hidden_layers, moe_k)
    return model.logits(text[None], plan=plan).numpy()[0]


def check(model, recipe: Recipe, lengths, largest: int, seed: int, moe_k: int | None = None):
    rng = np.random.default_rng(seed)
    texts = [rng.integers(0, model.config.vocab_size, length) for length in lengths]
    inference = InferenceModel(model, recipe=recipe, moe_k=moe_k)
    sequences = Sequences(inference, texts)
    sequences.run(rng, largest)
    for text, found in zip(texts, sequences.logits, strict=True):
        expected = expected_logits(model, text, recipe, inference.config.moe_k)
        assert np.array_equal(np.concatenate(found), expected)


@compiled
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@settings(max_examples=5)
@given(
    lengths=st.lists(st.integers(1, 100), min_size=1, max_size=5),
    largest=st.sampled_from([1, 3, 70]),
    seed=st.integers(0, 1000),
)
def test_bits_are_those_of_the_training_forward(make_model, recipe, lengths, largest, seed):
    check(make_model(3), recipe, lengths, largest, seed)


SHAPES = {
    "dense": {"moe_num_experts": 0, "num_hidden_layers": 2},
    "experts everywhere": {"moe_layer_start_index": 0, "num_hidden_layers": 2},
    "no shared experts": {"moe_num_shared_experts": 0, "num_hidden_layers": 2},
    "three shared experts": {"moe_num_shared_experts": 3, "num_hidden_layers": 2},
    "untied": {"tie_word_embeddings": False, "num_hidden_layers": 1},
    "odd widths": {
        "hidden_size": 80, "head_dim": 24, "num_attention_heads": 6, "intermediate_size": 150,
        "moe_intermediate_size": 37, "moe_num_experts": 5, "vocab_size": 131,
        "num_hidden_layers": 2,
    },
    "one key head": {"num_key_value_heads": 1, "num_hidden_layers": 1},
    "long sums": {
        "hidden_size": 600, "head_dim": 40, "intermediate_size": 1100, "num_hidden_layers": 2,
        "moe_intermediate_size": 560,
    },
}  # fmt: skip


@compiled
@pytest.mark.parametrize("recipe", ["fp32", "bf16", "fp8", "fp8 ue8m0"])
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(make_model, shape, recipe):
    check(make_model(5, **SHAPES[shape]), RECIPES[recipe], [70, 20, 3], 40, 1)


@compiled
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_instruction_sets(make_model, recipe, isa):
    with library.using(isa=isa):
        check(make_model(4, num_hidden_layers=2), recipe, [37, 6, 1], 20, 0)


@compiled
@pytest.mark.parametrize("recipe", [BF16, FP8], ids=["bf16", "fp8"])
@settings(max_examples=6)
@given(batch=st.integers(1, 40), threads=st.sampled_from([1, 2, 3]), seed=st.integers(0, 1000))
def test_batches_and_threads(make_model, recipe, batch, threads, seed):
    model = make_model(3, num_hidden_layers=2)
    texts = list(np.random.default_rng(seed).integers(0, 96, (batch, 4)))
    with library.using(threads=threads):
        sequences = Sequences(InferenceModel(model, recipe=recipe), texts)
        for count in (2, 1, 1):
            sequences.step(dict.fromkeys(range(batch), count))
    for text, found in zip(texts, sequences.logits, strict=True):
        assert np.array_equal(np.concatenate(found), expected_logits(model, text, recipe, 2))


def with_gate_up(make_model, values: np.ndarray):
    """A dense model of one layer with these numbers in its largest matrix, again and again."""
    model = make_model(3, moe_num_experts=0, num_hidden_layers=1)
    weight = model.layers[0].mlp.gate_up_proj
    weight.set_value(np.resize(values, weight.shape).astype(np.float32))
    return model


@compiled
def test_every_fp8_value(make_model):
    """Also the smallest and both zeros: one scale fits all, so each becomes its own code."""
    codes = paddle.to_tensor(np.arange(256, dtype=np.uint8).reshape(1, 256))
    values = from_e4m3(codes).numpy().reshape(-1)
    check(with_gate_up(make_model, values[~np.isnan(values)] / 512), FP8, [30, 1], 20, 0)


@compiled
def test_a_nan_stays_where_it_is(make_model):
    """In FP8, one weight spoils one column of a product."""
    values = np.random.default_rng(0).normal(0, 0.2, 32 * 96)
    values[700] = np.nan
    model, text = with_gate_up(make_model, values), np.arange(8)
    sequences = Sequences(InferenceModel(model, recipe=FP8), [text])
    sequences.step({0: 8})
    expected = expected_logits(model, text, FP8, 2)
    assert np.isnan(expected).any()
    np.testing.assert_array_equal(sequences.logits[0][0], expected)


@compiled
def test_long_sequences(make_model):
    """More positions than rotations are made for at first."""
    check(make_model(3, num_hidden_layers=1), BF16, [1100], 500, 0)


@compiled
def test_later_changes_of_the_weights_do_not_matter(make_model):
    model = make_model(3)
    text = np.arange(12)
    sequences = Sequences(InferenceModel(model, recipe=BF16), [text])
    expected = expected_logits(model, text, BF16, 2)
    for parameter in model.parameters():
        parameter.set_value(parameter * 2)
    sequences.step({0: 12})
    assert np.array_equal(sequences.logits[0][0], expected)


@compiled
def test_another_number_of_experts(make_model):
    model = make_model(3)
    check(model, BF16, [20, 5], 4, 0, moe_k=1)
    check(model, BF16, [20, 5], 4, 0, moe_k=5)


def test_experts_that_are_not_there(make_model):
    with pytest.raises(InputError, match="9 experts per token; expected 1 to 8"):
        InferenceModel(make_model(), moe_k=9)


def test_routes_are_the_chosen_experts(make_model):
    model = make_model(3)
    text = np.arange(30) % model.config.vocab_size
    sequences = Sequences(InferenceModel(model, recipe=FP32), [text])
    sequences.step({0: 20})
    sequences.step({0: 10})
    routes = np.concatenate(sequences.routes[0])
    assert routes.dtype == np.uint8
    assert routes.shape == (30, 3, 2)
    assert (routes < 8).all()
    assert (routes[..., 0] != routes[..., 1]).all()
    whole = Sequences(InferenceModel(model, recipe=FP32), [text])
    whole.step({0: 30})
    assert np.array_equal(whole.routes[0][0], routes)


def test_a_dense_model_has_no_routes(make_model):
    model = make_model(3, moe_num_experts=0)
    sequences = Sequences(InferenceModel(model), [np.arange(9)])
    sequences.step({0: 9})
    assert sequences.routes[0] == []
    assert sequences.logits[0][0].shape == (9, 96)


def test_values(make_model):
    """Also of the plain operators."""
    model = make_model(3)
    text = np.arange(40) % model.config.vocab_size
    sequences = Sequences(InferenceModel(model, recipe=FP32), [text, text[:7]])
    sequences.run(np.random.default_rng(0), 9)
    expected = expected_logits(model, text, FP32, 2)
    np.testing.assert_allclose(np.concatenate(sequences.logits[0]), expected, rtol=0, atol=2e-5)
    np.testing.assert_allclose(np.concatenate(sequences.logits[1]), expected[:7], rtol=0, atol=2e-5)


def test_only_the_wanted_rows(make_model):
    model = InferenceModel(make_model(3))
    pages = model.new_pages(2)
    batch = PagedBatch([pages.allocate(1), pages.allocate(1)], [0, 0], [3, 4])
    ids = np.arange(7)
    everything = model.step(ids, pages, batch, np.arange(7))
    some = model.step(ids, pages, batch, np.array([6, 2]))
    assert np.array_equal(some.logits_RV, everything.logits_RV[[6, 2]])
    assert some.routes_TLK is None
    assert model.step(ids, pages, batch, np.array([], np.int64)).logits_RV.shape == (0, 96)


def test_ids_that_do_not_fit_the_batch(make_model):
    model = InferenceModel(make_model(3))
    pages = model.new_pages(1)
    with pytest.raises(InputError, match="3 ids for a batch of 2 tokens"):
        model.step(np.arange(3), pages, PagedBatch([pages.allocate(1)], [0], [2]), np.array([1]))
