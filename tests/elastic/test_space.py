"""The sampler: ERNIE's frequencies, uniform choices, no state, clear errors, speed."""

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_ernie.config.elastic import DepthAxis, ElasticConfig, SparsityAxis, WidthAxis
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.elastic.space import ElasticSpace
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.utils.errors import ConfigError

MODEL = ModelConfig(num_hidden_layers=6, moe_num_experts=16, moe_k=4)
ALWAYS = ElasticConfig(
    depth=DepthAxis(probability=1, min_layers=2),
    width=WidthAxis(probability=1, fractions=[0.25, 0.5]),
    sparsity=SparsityAxis(probability=1),
)
ROWS = 20_000
SIGMAS = 5  # a correct sampler fails one such check in two million; seeds are fixed besides


def assert_binomial(hits: int, trials: int, probability: float) -> None:
    spread = np.sqrt(trials * probability * (1 - probability))
    assert abs(hits - trials * probability) < SIGMAS * spread, (hits, trials, probability)


@pytest.fixture(scope="module")
def drawn_by_default() -> list[tuple[str, ...]]:
    space = ElasticSpace(ElasticConfig(depth=DepthAxis(min_layers=2)), MODEL)
    return [space.axes(space.sample(3, row)) for row in range(ROWS)]


@pytest.fixture(scope="module")
def drawn_always() -> list[Subnet]:
    space = ElasticSpace(ALWAYS, MODEL)
    return [space.sample(11, row) for row in range(ROWS // 2)]


@pytest.mark.parametrize(("axis", "share"), [("depth", 0.25), ("width", 0.2), ("sparsity", 0.2)])
def test_each_axis_is_reduced_as_often_as_ernie_prints(drawn_by_default, axis, share):
    assert_binomial(sum(axis in axes for axes in drawn_by_default), ROWS, share)


def test_axes_are_independent(drawn_by_default):
    counts = Counter(drawn_by_default)
    for axes in [(), ("depth",), ("depth", "width"), ("depth", "width", "sparsity")]:
        share = np.prod(
            [
                reduced if axis in axes else 1 - reduced
                for axis, reduced in [("depth", 0.25), ("width", 0.2), ("sparsity", 0.2)]
            ]
        )
        assert_binomial(counts[axes], ROWS, float(share))


def test_depth_is_uniform_over_counts_and_layers(drawn_always):
    counts = Counter(len(subnet.layers) for subnet in drawn_always)
    assert set(counts) == {2, 3, 4, 5}
    for hits in counts.values():
        assert_binomial(hits, len(drawn_always), 1 / 4)
    for layer in range(6):
        pairs = [subnet.layers for subnet in drawn_always if len(subnet.layers) == 2]
        assert_binomial(sum(layer in pair for pair in pairs), len(pairs), 2 / 6)


def test_width_is_uniform_over_sizes_and_experts_and_drawn_per_layer(drawn_always):
    small = [subnet for subnet in drawn_always if max(map(len, subnet.experts)) == 4]
    assert_binomial(len(small), len(drawn_always), 1 / 2)
    first = [subnet.experts[-1] for subnet in small]
    for expert in range(16):
        assert_binomial(sum(expert in pool for pool in first), len(small), 4 / 16)
    both = [subnet for subnet in small if len([pool for pool in subnet.experts if pool]) >= 2]
    equal = sum(subnet.experts[-1] == subnet.experts[-2] for subnet in both)
    assert equal < len(both) * 0.01  # C(16, 4) = 1820 pools


def test_sparsity_is_uniform_and_below_the_default(drawn_always):
    counts = Counter(max(subnet.top_k) for subnet in drawn_always)
    assert set(counts) == {1, 2, 3}
    for hits in counts.values():
        assert_binomial(hits, len(drawn_always), 1 / 3)


def test_every_draw_fits_the_model(drawn_always):
    for subnet in drawn_always[:500]:
        subnet.validate(MODEL)
        assert len({size for size in subnet.sizes().experts if size}) == 1
        assert len({k for k in subnet.top_k if k}) == 1


@given(st.integers(0, 2**63), st.integers(0, 2**40))
def test_a_draw_depends_on_seed_and_row_only(seed, row):
    space = ElasticSpace(ALWAYS, MODEL)
    wanted = space.sample(seed, row)
    space.sample(seed, row + 1)
    assert space.sample(seed, row) == wanted
    assert ElasticSpace(ALWAYS, MODEL).sample(seed, row) == wanted


def test_rows_and_seeds_differ():
    space = ElasticSpace(ALWAYS, MODEL)
    assert len({space.sample(1, row) for row in range(200)}) > 195
    assert len({space.sample(seed, 1) for seed in range(200)}) > 195


def test_draws_are_pinned():
    """Saved runs resume with the same sub-models under every later version."""
    space = ElasticSpace(ALWAYS, MODEL)
    assert [space.sample(7, row).id for row in range(3)] == [
        "22e80c65225356c0",
        "c79b609289d07697",
        "875a92c35d68c6bc",
    ]


def test_changing_one_axis_leaves_the_draws_of_the_others():
    shallow = ElasticSpace(ALWAYS, MODEL)
    deep = ElasticSpace(ALWAYS.model_copy(update={"depth": DepthAxis(probability=0)}), MODEL)
    for row in range(50):
        reduced, whole = shallow.sample(5, row), deep.sample(5, row)
        assert whole.layers == tuple(range(6))
        assert reduced.experts == tuple(whole.experts[layer] for layer in reduced.layers)
        assert reduced.top_k == tuple(whole.top_k[layer] for layer in reduced.layers)


def test_probability_zero_always_gives_the_full_model():
    never = ElasticConfig(
        depth=DepthAxis(probability=0),
        width=WidthAxis(probability=0),
        sparsity=SparsityAxis(probability=0),
    )
    space = ElasticSpace(never, MODEL)
    assert all(space.sample(1, row).is_full(MODEL) for row in range(100))
    dense = ModelConfig(moe_num_experts=0)
    assert ElasticSpace(never, dense).sample(1, 1).is_full(dense)


def test_a_pool_is_never_smaller_than_the_default_top_k():
    elastic = ALWAYS.model_copy(update={"width": WidthAxis(probability=1, fractions=[0.01])})
    assert ElasticSpace(elastic, MODEL).pool_sizes == (4,)


@pytest.mark.parametrize(
    ("elastic", "model", "message"),
    [
        ({"depth": {"min_layers": 6}}, {}, r"min_layers is 6, .* at most 5 of the model's 6"),
        ({}, {"num_hidden_layers": 1, "moe_layer_start_index": 0}, "min_layers is 1"),
        ({"width": {"fractions": [0.5, 1.0]}}, {}, r"fractions has 1\.0; expected more than 0"),
        ({"width": {"fractions": [0.99]}}, {}, "leaves all 16 experts"),
        ({}, {"moe_num_experts": 4, "moe_k": 4}, "leaves all 4 experts"),
        ({"sparsity": {"min_k": 4}}, {}, r"min_k is 4, .* at most 3 of the model's moe_k 4"),
        ({}, {"moe_k": 1}, "min_k is 1"),
        ({}, {"moe_num_experts": 0}, "no MoE layers; set width.probability to 0"),
    ],
)
def test_impossible_spaces_are_refused_at_construction(elastic, model, message):
    fitted = ModelConfig.model_validate({**MODEL.model_dump(), **model})
    with pytest.raises(ConfigError, match=message):
        ElasticSpace(ElasticConfig.model_validate(elastic), fitted)


def test_all_faults_are_reported_together():
    with pytest.raises(ConfigError) as error:
        ElasticSpace(ElasticConfig(), ModelConfig(moe_num_experts=0, num_hidden_layers=1))
    assert all(axis in str(error.value) for axis in ("depth.", "width:", "sparsity:"))


def test_axes_are_judged_by_what_is_left():
    space = ElasticSpace(ALWAYS, MODEL)
    assert space.axes(Subnet.full(MODEL)) == ()
    assert space.axes(Subnet((0,), ((),), (0,))) == ("depth",)


def test_sampling_a_batch_is_fast():
    model = ModelConfig(num_hidden_layers=6, moe_num_experts=64, moe_k=8)
    space = ElasticSpace(ElasticConfig(), model)
    space.sample(1, 0)
    seconds = []
    for start in range(0, 640, 64):
        before = time.perf_counter()
        for row in range(start, start + 64):
            space.sample(1, row)
        seconds.append(time.perf_counter() - before)
    assert min(seconds) < 5e-3
