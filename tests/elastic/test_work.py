"""Work of plans, against the cost of standalone models and what a forward pass really does."""

import math

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_ernie.config.elastic import DepthAxis, ElasticConfig, SparsityAxis, WidthAxis
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.elastic.space import ElasticSpace
from paddle_ernie.elastic.standalone import standalone_config
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.elastic.supernet import forward_plan, uniform_plan
from paddle_ernie.elastic.work import plan_flops, row_sizes
from paddle_ernie.models.cost import flops_per_token
from paddle_ernie.ops import library
from tests.elastic.conftest import model_config
from tests.elastic.strategies import PLAN_MODEL, batches, configs_with_specs

MODEL = PLAN_MODEL.model_copy(update={"vocab_size": 300, "num_nextn_predict_layers": 1})
WIDE_SPACE = ElasticSpace(
    ElasticConfig(
        depth=DepthAxis(probability=0.5),
        width=WidthAxis(probability=0.5, fractions=[0.4, 0.8]),
        sparsity=SparsityAxis(probability=0.5),
    ),
    model_config(),
)


@pytest.mark.parametrize("backward", [False, True])
def test_full_rows_cost_what_the_model_costs(backward):
    plan = uniform_plan(Subnet.full(MODEL), 3, MODEL)
    wanted = 3 * 32 * flops_per_token(MODEL, 32, backward=backward)
    assert plan_flops(plan, MODEL, 32, backward=backward) == wanted


@given(configs_with_specs(), st.integers(1, 5), st.booleans())
def test_rows_of_one_subnet_cost_what_the_extracted_model_costs(drawn, rows, backward):
    config: ModelConfig = drawn[0].model_copy(update={"vocab_size": 300})
    subnet = Subnet.from_spec(drawn[1], config)
    plan = uniform_plan(subnet, rows, config)
    small = standalone_config(config, subnet)
    wanted = rows * 16 * flops_per_token(small, 16, backward=backward)
    assert plan_flops(plan, config, 16, backward=backward) == wanted


@given(batches)
def test_a_mixed_batch_costs_the_sum_of_its_rows(subnets):
    plan = forward_plan(subnets, MODEL)
    assert row_sizes(plan, MODEL) == [subnet.sizes() for subnet in subnets]
    each = [plan_flops(uniform_plan(one, 1, MODEL), MODEL, 16, backward=True) for one in subnets]
    assert plan_flops(plan, MODEL, 16, backward=True) == pytest.approx(sum(each), rel=1e-12)


@given(batches)
def test_reduced_rows_cost_less(subnets):
    full = plan_flops(uniform_plan(Subnet.full(MODEL), 1, MODEL), MODEL, 16, backward=True)
    for subnet in subnets:
        work = plan_flops(uniform_plan(subnet, 1, MODEL), MODEL, 16, backward=True)
        assert (work < full) == (not subnet.is_full(MODEL))


@given(seeds=st.lists(st.integers(0, 200), min_size=1, max_size=4))
@settings(max_examples=15, deadline=None)
def test_the_forward_pass_multiplies_as_much_as_its_plan_says(model, seeds):
    """Every matrix product of a real forward pass (of the plain operators), against the formula."""
    config, seq_len = model.config, 24
    subnets = [WIDE_SPACE.sample(1, seed) for seed in seeds]
    plan = forward_plan(subnets, config)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (len(subnets), seq_len))
    counted = 0
    real_matmul = paddle.matmul

    def counting_matmul(x, y, **flags):
        nonlocal counted
        result = real_matmul(x, y, **flags)
        inner = x.shape[-2] if flags.get("transpose_x") else x.shape[-1]
        counted += 2 * inner * math.prod(result.shape)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "available", lambda x: False)
        patch.setattr(paddle, "matmul", counting_matmul)
        model.logits(ids, plan=plan)
    # The formula has the causal half of the scores; a block this short is computed whole.
    whole, half = seq_len**2, seq_len * (seq_len + 1) // 2
    layers_run = sum(len(subnet.layers) for subnet in subnets)
    masked = layers_run * 4 * config.num_attention_heads * config.dim_per_head * (whole - half)
    assert counted == plan_flops(plan, config, seq_len, backward=False) + masked
