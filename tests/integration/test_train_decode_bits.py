"""What the trainer computes for a token and what generation computes are the same bits.

One packed row with two documents through the training forward; then each document alone, its first
part as a prompt (in chunks) and the rest token by token through a cache; and all documents together
in the batches of a server, which an InferenceModel continues.
"""

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.models.cache import KVCache
from paddle_ernie.models.inference import InferenceModel
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.ops import library
from paddle_ernie.ops.numerics import BF16, FP8, FP32, Recipe
from paddle_ernie.ops.paged_attention import PagedBatch, pages_for
from paddle_ernie.ops.token_logprobs import logprobs_of_logits

VOCABULARY = 131
SINGLE_TOKENS = 8
"""How many at the end of a document are decoded one by one."""
CONFIG = ModelConfig(
    vocab_size=VOCABULARY,
    hidden_size=80,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=24,
    intermediate_size=150,
    moe_num_experts=6,
    moe_k=2,
    moe_intermediate_size=40,
    max_position_embeddings=512,
)
RECIPES = {
    "fp32": FP32,
    "bf16": BF16,
    "fp8": FP8,
    "fp8 ue8m0": Recipe("fp8", "fp8", "fp8", power_of_two_scales=True),
}

pytestmark = pytest.mark.skipif(
    not library.loaded(), reason="the reference operators promise no bits; a compiler is missing"
)


@pytest.fixture(scope="module")
def model() -> ErnieMoeModel:
    network = ErnieMoeModel(CONFIG, seed=3)
    rng = np.random.default_rng(0)
    for name, parameter in network.named_parameters():
        if name.endswith("correction_bias"):  # so that choosing differs from weighing
            parameter.set_value(rng.normal(0, 0.05, parameter.shape).astype(np.float32))
        elif parameter.ndim > 1:  # large enough for routing to be decided
            parameter.set_value(parameter * 6)
    return network


def training_logprobs(model: ErnieMoeModel, documents: list[np.ndarray]) -> list[np.ndarray]:
    """Log-probability of every next token, from one packed row."""
    ids = np.concatenate(documents)[None]
    labels = np.concatenate([np.append(d[1:], -100) for d in documents])[None]
    doc_ids = np.repeat(np.arange(len(documents)), [len(d) for d in documents])[None]
    positions = np.concatenate([np.arange(len(d)) for d in documents])[None]
    output = model.loss(ids, labels, doc_ids, positions, denominator=1.0)
    ends = np.cumsum([len(d) for d in documents])
    return [-part[:-1] for part in np.split(output.token_loss[0], ends[:-1])]


@paddle.no_grad()
def decoding_logprobs(model: ErnieMoeModel, document: np.ndarray, chunks: list[int]) -> np.ndarray:
    """The same with a cache: a prompt in `chunks` and what follows, the last tokens one by one."""
    cache = KVCache(CONFIG.num_hidden_layers, len(document))
    numerics, found, start = model.numerics(), [], 0
    while start < len(document) - 1:
        left = len(document) - 1 - start
        size = min(chunks.pop(0), left) if chunks else max(1, left - SINGLE_TOKENS)
        piece = document[None, start : start + size]
        logits = model.logits(piece, cache=cache, numerics=numerics)
        targets = document[start + 1 : start + size + 1]
        logprobs, _ = logprobs_of_logits(logits.reshape([size, -1]), targets)
        found.append(logprobs)
        start += size
    return np.concatenate([np.asarray(part) for part in found])


def serving_logprobs(
    model: ErnieMoeModel, documents: list[np.ndarray], rng: np.random.Generator
) -> list[np.ndarray]:
    """The same from steps of an InferenceModel: some documents go on by some tokens each time."""
    server = InferenceModel(model)
    pages = server.new_pages(sum(pages_for(len(document)) for document in documents))
    tables = [pages.allocate(pages_for(len(document))) for document in documents]
    read = [0] * len(documents)
    found: list[list[np.ndarray]] = [[] for _ in documents]
    while left := [i for i, document in enumerate(documents) if read[i] < len(document) - 1]:
        chosen = [int(i) for i in rng.permutation(left)[: rng.integers(1, len(left) + 1)]]
        sizes = [min(int(rng.integers(1, 60)), len(documents[i]) - 1 - read[i]) for i in chosen]
        pieces = [documents[i][read[i] : read[i] + n] for i, n in zip(chosen, sizes, strict=True)]
        batch = PagedBatch([tables[i] for i in chosen], [read[i] for i in chosen], sizes)
        ids = np.concatenate(pieces)
        logits = server.step(ids, pages, batch, np.arange(len(ids))).logits_RV
        for i, size, part in zip(
            chosen, sizes, np.split(logits, np.cumsum(sizes)[:-1]), strict=True
        ):
            targets = documents[i][read[i] + 1 : read[i] + size + 1]
            found[i].append(np.asarray(logprobs_of_logits(paddle.to_tensor(part), targets)[0]))
            read[i] += size
    return [np.concatenate(parts) for parts in found]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@settings(max_examples=6)
@given(
    lengths=st.lists(st.integers(2, 150), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
    threads=st.sampled_from([1, 2, 3]),
)
def test_serving_repeats_the_training_forward(model, recipe, lengths, seed, threads):
    rng = np.random.default_rng(seed)
    documents = [rng.integers(0, VOCABULARY, length) for length in lengths]
    model.recipe = recipe
    trained = training_logprobs(model, documents)
    with library.using(threads=threads):
        served = serving_logprobs(model, documents, rng)
    for found, expected in zip(served, trained, strict=True):
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@settings(max_examples=6)
@given(
    lengths=st.lists(st.integers(2, 150), min_size=1, max_size=3),
    chunks=st.lists(st.integers(1, 90), max_size=2),
    seed=st.integers(0, 1000),
    threads=st.sampled_from([1, 2, 3]),
)
def test_decoding_repeats_the_training_forward(model, recipe, lengths, chunks, seed, threads):
    rng = np.random.default_rng(seed)
    documents = [rng.integers(0, VOCABULARY, length) for length in lengths]
    model.recipe = recipe
    trained = training_logprobs(model, documents)
    with library.using(threads=threads):
        for document, expected in zip(documents, trained, strict=True):
            found = decoding_logprobs(model, document, list(chunks))
            np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_recipes_differ(model):
    """Or the test above would compare fp32 with itself."""
    document = np.random.default_rng(1).integers(0, VOCABULARY, 40)
    results = []
    for recipe in RECIPES.values():
        model.recipe = recipe
        results.append(training_logprobs(model, [document])[0])
    for i, one in enumerate(results):
        for other in results[:i]:
            assert 0 < np.abs(one - other).max() < 1.0
