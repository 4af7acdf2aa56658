"""A model small enough that a process measures it in a second, and the rival if there is one."""

import pytest

from paddle_ernie.bench.sides import DEFAULT_RIVAL, DEFAULT_VLLM, Sides, find_rival, find_vllm
from paddle_ernie.config.model import ModelConfig

TINY = ModelConfig(
    vocab_size=320,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    intermediate_size=48,
    moe_num_experts=4,
    moe_k=2,
    moe_intermediate_size=16,
    max_position_embeddings=64,
)
ALONE = Sides(threads=1, rounds=1, rival=None)
needs_rival = pytest.mark.skipif(
    not DEFAULT_RIVAL.is_file(), reason=f"{DEFAULT_RIVAL} is not there: no torch to compare with"
)
needs_vllm = pytest.mark.skipif(
    not DEFAULT_VLLM.is_file(), reason=f"{DEFAULT_VLLM} is not there: no vLLM to compare with"
)


def both_sides() -> Sides:
    return Sides(threads=1, rounds=2, rival=find_rival(None))


def with_vllm() -> Sides:
    return Sides(threads=1, rounds=1, rival=None, vllm=find_vllm(None))
