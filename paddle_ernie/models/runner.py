"""Runs the decoder layers of one forward pass on the rows that each layer's plan lists.

    hidden [B, S, D] --rows in group order--> [A * S, D] --block--> --back in place--> [B, S, D]

Called by `ErnieMoeModel`; one LayerRunner per forward pass.
"""

from collections.abc import Callable

import numpy as np
import paddle

from paddle_ernie.models.block import Block
from paddle_ernie.models.cache import KVCache
from paddle_ernie.models.plan import LayerPlan
from paddle_ernie.models.rows import RowInputs
from paddle_ernie.models.stats import RouterRecorder
from paddle_ernie.ops.rows import merge_rows, split_rows

BlockResult = paddle.Tensor | tuple[paddle.Tensor, paddle.Tensor]
"""Hidden states, and with the balance loss its sum."""


class LayerRunner:
    """Inputs that all layers share, and what they leave behind."""

    def __init__(
        self,
        rows: RowInputs,
        *,
        cache: KVCache | None = None,
        recorder: RouterRecorder | None = None,
        balance: bool = False,
        recompute: bool = False,
    ) -> None:
        self.rows = rows
        self.balance_sums: list[paddle.Tensor] = []
        """Per MoE layer that ran, the balance loss summed over its rows."""
        self._cache = cache
        self._recorder = recorder
        self._balance = balance
        self._recompute = recompute

    def run(
        self, index: int, block: Block, plan: LayerPlan, hidden_BSD: paddle.Tensor
    ) -> paddle.Tensor:
        """Apply one layer to its rows; the others pass by at the cost of a copy."""
        if not plan.groups:
            return hidden_BSD
        every_row = np.arange(hidden_BSD.shape[0])
        # Rows of one group lie side by side, so that the router can treat them as one slice.
        active_rows = np.concatenate([group.rows for group in plan.groups])
        if np.array_equal(active_rows, every_row):
            return self._run_rows(index, block, plan, hidden_BSD, self.rows)
        idle_rows = np.setdiff1d(every_row, active_rows)
        active, idle = split_rows(hidden_BSD, active_rows, idle_rows)
        active = self._run_rows(index, block, plan, active, self.rows.take(active_rows))
        return merge_rows(active, idle, active_rows, idle_rows)

    def run_block(
        self, function: Callable[..., BlockResult], *inputs: paddle.Tensor
    ) -> BlockResult:
        """function(*inputs); with recompute, its activations are not kept but made again."""
        if not (self._recompute and paddle.is_grad_enabled()):
            return function(*inputs)
        from paddle.distributed.fleet.utils import recompute

        # Nothing in a block draws random numbers.
        return recompute(function, *inputs, preserve_rng_state=False)

    def _run_rows(
        self, index: int, block: Block, plan: LayerPlan, hidden_ASD: paddle.Tensor, rows: RowInputs
    ) -> paddle.Tensor:
        balance = self._balance and block.is_moe
        cache = None if self._cache is None else self._cache.layers[index]

        def call(x_TD: paddle.Tensor) -> BlockResult:
            output, balance_sum = block(
                x_TD, rows, plan.groups, cache=cache, recorder=self._recorder, balance=balance
            )
            return (output, balance_sum) if balance else output

        result = self.run_block(call, hidden_ASD.reshape([-1, hidden_ASD.shape[-1]]))
        if balance:
            result, balance_sum = result
            self.balance_sums.append(balance_sum)
        return result.reshape(hidden_ASD.shape)
