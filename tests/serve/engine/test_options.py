"""Options that cannot be."""

import pytest

from paddle_ernie.serve.engine.options import EngineOptions
from paddle_ernie.utils.errors import InputError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"num_pages": -3}, "num_pages is -3"),
        ({"moe_k": 0}, "moe_k is 0"),
        ({"precision": "fp16"}, "precision is 'fp16'; expected one of fp32, bf16, fp8"),
        ({"max_num_seqs": 65, "max_num_batched_tokens": 64}, "each running sequence needs a token"),
    ],
)
def test_what_is_wrong_is_said(options, message):
    with pytest.raises(InputError, match=message):
        EngineOptions(**options)
