"""Counts against the real model and against a list of weight shapes; work against sampled rows."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.config.elastic import ElasticConfig, SubnetSpec
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.config.train import TrainConfig
from paddle_ernie.elastic.space import ElasticSpace
from paddle_ernie.elastic.standalone import standalone_config
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.models.cost import (
    LOSS_CHUNK,
    MemoryEstimate,
    elastic_flops_per_token,
    flops_per_token,
    memory_estimate,
    parameter_counts,
)

CONFIGS = st.builds(
    dict,
    vocab_size=st.integers(2, 300),
    hidden_size=st.sampled_from([16, 24, 40]),
    num_hidden_layers=st.integers(1, 4),
    num_attention_heads=st.sampled_from([2, 4]),
    num_key_value_heads=st.sampled_from([1, 2]),
    head_dim=st.sampled_from([4, 6, 10]),
    intermediate_size=st.integers(1, 50),
    moe_num_experts=st.sampled_from([0, 3, 8]),
    moe_k=st.integers(1, 3),
    moe_intermediate_size=st.integers(1, 20),
    moe_num_shared_experts=st.integers(0, 2),
    moe_layer_start_index=st.integers(0, 4),
    num_nextn_predict_layers=st.integers(0, 1),
    tie_word_embeddings=st.booleans(),
).map(lambda values: ModelConfig(**values))
TINY = ModelConfig(
    vocab_size=200,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    moe_num_experts=6,
    moe_k=2,
    moe_intermediate_size=20,
)
Product = tuple[int, int, float]  # a weight's two axes, and how many times a token passes one


def products(config: ModelConfig) -> Iterator[tuple[str, Product, int]]:
    """Every matrix of the model: (part, product, how many such matrices there are)."""
    D, heads = config.hidden_size, config.num_attention_heads
    d, groups = config.dim_per_head, config.num_key_value_heads

    def mlp(width: int, times: float, copies: int) -> Iterator[tuple[str, Product, int]]:
        for shape in ((D, width), (D, width), (width, D)):
            yield "layer", (*shape, times), copies

    def attention(part: str) -> Iterator[tuple[str, Product, int]]:
        for width in (heads * d, groups * d, groups * d, heads * d):
            yield part, (D, width, 1), 1

    for layer in range(config.num_hidden_layers):
        yield from attention("layer")
        if config.is_moe_layer(layer):
            E, k, F = config.moe_num_experts, config.moe_k, config.moe_intermediate_size
            yield "layer", (D, E, 1), 1
            yield from mlp(F, k / E, E)
            yield from mlp(F, 1, config.moe_num_shared_experts)
        else:
            yield from mlp(config.intermediate_size, 1, 1)
    yield "embedding", (config.vocab_size or 0, D, 1), 1
    if not config.tie_word_embeddings:
        yield "head", (config.vocab_size or 0, D, 1), 1
    for _ in range(config.num_nextn_predict_layers):
        yield "mtp", (2 * D, D, 1), 1
        yield from attention("mtp")
        for _, product, copies in mlp(config.intermediate_size, 1, 1):
            yield "mtp", product, copies


def norms(config: ModelConfig) -> tuple[int, int]:
    """Entries of norm weights in the model and in its prediction block."""
    D = config.hidden_size
    return D * (2 * config.num_hidden_layers + 1), config.num_nextn_predict_layers * 4 * D


@given(CONFIGS)
def test_counts_are_the_sums_of_all_shapes(config: ModelConfig) -> None:
    counts = parameter_counts(config)
    every = list(products(config))
    total = sum(a * b * copies for _, (a, b, _), copies in every) + sum(norms(config))
    active = sum(a * b * t * n for part, (a, b, t), n in every if part != "mtp") + norms(config)[0]
    assert counts.total == total
    assert counts.active == pytest.approx(active, abs=0.01)
    assert counts.embedding == sum(
        a * b for part, (a, b, _), _ in every if part in ("embedding", "head")
    )
    assert counts.mtp == sum(a * b for p, (a, b, _), _ in every if p == "mtp") + norms(config)[1]
    assert counts.total - counts.total_without_embedding == counts.embedding
    assert counts.active - counts.active_without_embedding == counts.embedding


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("mtp", [0, 1])
@pytest.mark.parametrize("experts", [0, 6])
def test_counts_are_those_of_the_real_model(tied: bool, mtp: int, experts: int) -> None:
    from paddle_ernie.models.model import ErnieMoeModel

    config = TINY.model_copy(
        update={
            "tie_word_embeddings": tied,
            "num_nextn_predict_layers": mtp,
            "moe_num_experts": experts,
        }
    )
    model = ErnieMoeModel(config)
    trainable = [p for p in model.parameters() if not p.stop_gradient]
    assert parameter_counts(config).total == sum(int(np.prod(p.shape)) for p in trainable)


@given(CONFIGS, st.data())
def test_a_subnet_counts_like_the_model_it_becomes(
    config: ModelConfig, data: st.DataObject
) -> None:
    layers = data.draw(st.integers(1, config.num_hidden_layers))
    spec = SubnetSpec(layers=layers)
    if config.moe_num_experts:
        top_k = data.draw(st.integers(1, config.moe_k))
        experts = data.draw(st.integers(top_k, config.moe_num_experts))
        spec = SubnetSpec(layers=layers, experts=experts, top_k=top_k)
    subnet = Subnet.from_spec(spec, config)
    standalone = standalone_config(config, subnet)
    assert parameter_counts(config, subnet.sizes()) == parameter_counts(standalone)
    for backward in (False, True):
        assert flops_per_token(
            config, 64, backward=backward, sizes=subnet.sizes()
        ) == pytest.approx(flops_per_token(standalone, 64, backward=backward))


@given(CONFIGS, st.integers(1, 50))
def test_operations_are_the_sums_of_all_products(config: ModelConfig, seq_len: int) -> None:
    every = list(products(config))
    main = sum(2 * a * b * t * n for part, (a, b, t), n in every if part == "layer")
    mtp = sum(2 * a * b * t * n for part, (a, b, t), n in every if part == "mtp")
    head = 2 * (config.vocab_size or 0) * config.hidden_size
    # Position i looks at i + 1 keys: two products of one head's width for each.
    looks = sum(i + 1 for i in range(seq_len)) / seq_len
    attention = 2 * 2 * config.num_attention_heads * config.dim_per_head * looks
    forward = main + head + config.num_hidden_layers * attention
    assert flops_per_token(config, seq_len, backward=False) == pytest.approx(forward)
    if config.num_nextn_predict_layers:
        forward += mtp + head + attention
    assert flops_per_token(config, seq_len, backward=True) == pytest.approx(3 * forward)


@pytest.mark.parametrize("start", [0, 1])
def test_expected_work_is_the_mean_over_sampled_rows(start: int) -> None:
    model = TINY.model_copy(update={"moe_layer_start_index": start, "num_nextn_predict_layers": 1})
    elastic = ElasticConfig(
        depth={"probability": 0.5}, width={"probability": 0.5}, sparsity={"probability": 0.5}
    )
    space = ElasticSpace(elastic, model)
    work = [
        flops_per_token(model, 32, backward=True, sizes=space.sample(7, row).sizes())
        for row in range(4000)
    ]
    expected = elastic_flops_per_token(model, elastic, 32)
    # Four standard errors: false alarms once in 16,000 seeds, and the seed is fixed.
    assert abs(np.mean(work) - expected) < 4 * np.std(work) / np.sqrt(len(work))
    assert expected < 0.9 * flops_per_token(model, 32, backward=True)


def test_without_reductions_elastic_work_is_full_work() -> None:
    off = {"probability": 0}
    elastic = ElasticConfig(depth=off, width=off, sparsity=off)
    full = flops_per_token(TINY, 32, backward=True)
    assert elastic_flops_per_token(TINY, elastic, 32) == pytest.approx(full)


def estimate(config: ModelConfig = TINY, seq_len: int = 64, **train: int | bool) -> MemoryEstimate:
    return memory_estimate(config, TrainConfig(max_steps=1, **train), seq_len)


def test_memory_of_weights_gradients_and_state() -> None:
    counts = parameter_counts(TINY).total
    memory = estimate()
    assert (memory.weights, memory.gradients) == (4 * counts, 4 * counts)
    assert (memory.optimizer, memory.checkpoint) == (8 * counts, 12 * counts)
    parts = [getattr(memory, name) for name in MemoryEstimate.__dataclass_fields__]
    assert memory.total == sum(parts) and all(part > 0 for part in parts)


def test_memory_of_activations_is_that_of_one_micro_batch() -> None:
    whole, half = estimate(global_batch_size=8), estimate(global_batch_size=8, micro_batch_size=4)
    assert half.activations == whole.activations / 2
    assert estimate(seq_len=128, global_batch_size=4).activations == whole.activations
    assert half.weights == whole.weights


def test_recomputation_keeps_one_layer_and_the_inputs_of_the_others() -> None:
    deep = TINY.model_copy(update={"num_hidden_layers": 20})
    deeper = TINY.model_copy(update={"num_hidden_layers": 21})
    plain, recomputed = estimate(deep), estimate(deep, recompute=True)
    assert recomputed.activations < plain.activations / 4
    added = estimate(deeper, recompute=True).activations - recomputed.activations
    assert added == 4 * 16 * 64 * TINY.hidden_size  # fp32, 16 rows of 64 tokens


def test_logits_exist_by_the_chunk() -> None:
    wide = TINY.model_copy(update={"vocab_size": 50_000})
    small, large = estimate(wide, LOSS_CHUNK // 16), estimate(wide, LOSS_CHUNK)
    gradients = 4 * 16 * (LOSS_CHUNK - LOSS_CHUNK // 16) * wide.hidden_size
    assert large.logits - small.logits == pytest.approx(gradients)


def test_the_loss_uses_the_same_chunk() -> None:
    from paddle_ernie.ops import linear_cross_entropy

    assert linear_cross_entropy.LOSS_CHUNK == LOSS_CHUNK
