"""The dense SwiGLU MLP: of dense layers, of shared experts (fused), of the prediction block."""

import paddle

from paddle_ernie.models.init import parameter
from paddle_ernie.ops.linear import linear
from paddle_ernie.ops.numerics import Numerics
from paddle_ernie.ops.swiglu import swiglu


class MLP(paddle.nn.Layer):
    """down(silu(gate(x)) * up(x)); gate and up are the halves of one matrix."""

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.gate_up_proj = parameter(self, hidden_size, 2 * width)
        self.down_proj = parameter(self, width, hidden_size)

    def forward(self, x_TD: paddle.Tensor, numerics: Numerics) -> paddle.Tensor:
        """[T, D] -> [T, D]."""
        hidden = swiglu(linear(x_TD, self.gate_up_proj, numerics))
        return linear(hidden, self.down_proj, numerics)
