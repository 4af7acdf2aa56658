"""Validation loss of the full model and of named subnets, all on the same rows.

Called by the evaluation callback at every evaluation and by the report tools on finished models.

Bits per byte make models with different tokenizers comparable: the summed negative log-likelihood
of all targets over ln 2, divided by the UTF-8 bytes those targets stand for. A document's
end-of-text token is a target like any other (its nats count) and stands for 0 bytes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import paddle

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.data.corpus import Corpus
from paddle_ernie.data.types import IGNORE_LABEL, Batch
from paddle_ernie.elastic.subnet import Subnet
from paddle_ernie.elastic.supernet import uniform_plan
from paddle_ernie.models.model import ErnieMoeModel

FULL = "full"
"""Name of the whole model among the evaluated subnets."""


@dataclass(frozen=True)
class EvalResult:
    """How well one model or subnet predicts a batch.

    Example: 1000 targets standing for 3500 bytes at 2000 nats: loss 2.0 nats a token, perplexity
    7.39, 2000 / ln 2 / 3500 = 0.82 bits per byte.
    """

    nats: float
    """Summed negative log-likelihood of the targets."""
    targets: int
    """Tokens predicted."""
    target_bytes: int
    """UTF-8 bytes they stand for."""

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.targets if self.targets else math.nan

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte of text."""
        return self.nats / math.log(2) / self.target_bytes if self.target_bytes else math.nan

    @property
    def perplexity(self) -> float:
        """exp(loss); inf where that overflows."""
        return perplexity(self.loss)


def perplexity(loss: float) -> float:
    """exp(loss); inf where that overflows (a loss above 709 nats)."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def target_bytes(labels: np.ndarray, token_bytes: np.ndarray) -> int:
    """UTF-8 bytes of the targets among `labels`; `token_bytes` is int64 [V]."""
    return int(token_bytes[labels[labels != IGNORE_LABEL]].sum())


def evaluate(
    model: ErnieMoeModel,
    batch: Batch,
    subnets: Mapping[str, Subnet],
    *,
    token_bytes: np.ndarray,
    micro_rows: int,
) -> dict[str, EvalResult]:
    """The full model's result under `FULL`, then one per named subnet."""
    named = {FULL: Subnet.full(model.config), **subnets}
    return {
        name: evaluate_subnet(model, batch, subnet, token_bytes=token_bytes, micro_rows=micro_rows)
        for name, subnet in named.items()
    }


def evaluate_subnet(
    model: ErnieMoeModel,
    batch: Batch,
    subnet: Subnet,
    *,
    token_bytes: np.ndarray,
    micro_rows: int,
) -> EvalResult:
    """One subnet's result; `token_bytes` is int64 [V]."""
    return EvalResult(
        nats=_nats(model, batch, subnet, micro_rows),
        targets=batch.num_targets,
        target_bytes=target_bytes(batch.labels, token_bytes),
    )


def bytes_by_id(corpus: Corpus, model: ModelConfig) -> np.ndarray:
    """int64 [V], UTF-8 bytes per id; 0 for ids that only the model has (a padded vocabulary)."""
    known = corpus.tokenizer.token_bytes
    assert model.vocab_size is not None
    return np.pad(known, (0, model.vocab_size - len(known)))


def _nats(model: ErnieMoeModel, batch: Batch, subnet: Subnet, micro_rows: int) -> float:
    total, numerics = 0.0, model.numerics()
    with paddle.no_grad():
        for start in range(0, len(batch), micro_rows):
            micro = batch.rows(start, start + micro_rows)
            output = model.loss(
                micro.input_ids,
                micro.labels,
                micro.doc_ids,
                micro.position_ids,
                plan=uniform_plan(subnet, len(micro), model.config),
                denominator=1.0,
                numerics=numerics,
            )
            total += float(output.token_loss.sum(dtype=np.float64))
    return total
