"""One decoder layer: x + attention(norm(x)), then x + mlp(norm(x))."""

import paddle

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.models.attention import Attention
from paddle_ernie.models.cache import LayerCache
from paddle_ernie.models.init import parameter
from paddle_ernie.models.mlp import MLP
from paddle_ernie.models.moe import MoE
from paddle_ernie.models.plan import ExpertGroup
from paddle_ernie.models.rows import RowInputs
from paddle_ernie.models.stats import RouterRecorder
from paddle_ernie.ops.add import add
from paddle_ernie.ops.rms_norm import add_rms_norm, rms_norm


class Block(paddle.nn.Layer):
    """Decoder layer `layer`; with MoE or, for None or a dense layer, with one MLP."""

    def __init__(self, config: ModelConfig, layer: int | None) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.is_moe = layer is not None and config.is_moe_layer(layer)
        self.input_layernorm = parameter(self, config.hidden_size, value=1.0)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = parameter(self, config.hidden_size, value=1.0)
        if self.is_moe:
            self.mlp = MoE(config, layer)
        else:
            self.mlp = MLP(config.hidden_size, config.intermediate_size)

    def forward(
        self,
        x_TD: paddle.Tensor,
        rows: RowInputs,
        groups: tuple[ExpertGroup, ...],
        *,
        cache: LayerCache | None = None,
        recorder: RouterRecorder | None = None,
        balance: bool = False,
    ) -> tuple[paddle.Tensor, paddle.Tensor | None]:
        """(hidden states of the given rows, their summed balance loss or None)."""
        normed = rms_norm(x_TD, self.input_layernorm, self.eps)
        attended = self.self_attn(normed, rows, cache)
        x_TD, normed = add_rms_norm(x_TD, attended, self.post_attention_layernorm, self.eps)
        if not self.is_moe:
            return add(x_TD, self.mlp(normed, rows.numerics)), None
        return self.mlp(normed, x_TD, groups, rows, recorder, balance)
