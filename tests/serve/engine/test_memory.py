"""How much an engine holds."""

import pytest

from paddle_ernie.serve.engine.memory import page_bytes
from paddle_ernie.utils.errors import InputError


def test_pages_are_what_memory_holds_and_what_can_be_used(make_engine, weights):
    one = page_bytes(weights.model)
    memory = {"num_pages": None, "max_model_len": 130, "max_num_seqs": 4}
    assert make_engine(**memory, kv_cache_bytes=5 * one + 1).info.num_pages == 5
    assert make_engine(**memory, kv_cache_bytes=1000 * one).info.num_pages == 4 * 3
    with pytest.raises(InputError, match=f"expected at least {one:,}"):
        make_engine(**memory, kv_cache_bytes=one - 1)


def test_what_is_longer_than_the_model_is_meant_for(make_engine):
    with pytest.raises(InputError, match="max_model_len is 8193; expected at most 8192"):
        make_engine(max_model_len=8193)
