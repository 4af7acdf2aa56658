"""Architectures that cannot be built are refused; derived values are right."""

import pytest
from pydantic import ValidationError

from paddle_ernie.config.model import ModelConfig


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hidden_size": 10, "num_attention_heads": 4}, "hidden_size 10 is not a multiple"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "num_attention_heads 4 is not"),
        ({"hidden_size": 12, "num_attention_heads": 4}, "head_dim 3 is odd"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"moe_num_experts": 4, "moe_k": 5}, "moe_k 5 is more than moe_num_experts 4"),
        ({"num_nextn_predict_layers": 2}, "less than or equal to 1"),
        ({"rms_norm_eps": 0}, "greater than 0"),
    ],
)
def test_refused(values: dict[str, float], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ModelConfig(**values)


def test_head_dim() -> None:
    assert ModelConfig(hidden_size=64, num_attention_heads=4).dim_per_head == 16
    assert ModelConfig(hidden_size=65, head_dim=8).dim_per_head == 8


def test_moe_layers() -> None:
    assert ModelConfig(num_hidden_layers=4, moe_layer_start_index=2).moe_layers == (2, 3)
    assert ModelConfig(num_hidden_layers=2, moe_layer_start_index=5).moe_layers == ()
    assert ModelConfig(moe_num_experts=0, moe_k=9).moe_layers == ()
