"""One forward pass of what the scheduler chose, and the tokens drawn from it. Called by the engine.

    (sequence, tokens) ... -> ids [T], page tables -> logits of rows that are drawn from, then of
                                                      rows that score a prompt

Routes and log-probabilities of prompts go into the sequences; where they stand is the engine's to
advance.
"""

from collections.abc import Iterable

import numpy as np

from paddle_ernie.models.inference import InferenceModel
from paddle_ernie.ops.paged_attention import KVPages, PagedBatch
from paddle_ernie.serve.engine.sampler import Sampler
from paddle_ernie.serve.engine.sequence import Sequence
from paddle_ernie.serve.types import TokenLogprob

Draw = tuple[Sequence, int, TokenLogprob | None]


def forward(
    model: InferenceModel, pages: KVPages, sampler: Sampler, plan: list[tuple[Sequence, int]]
) -> list[Draw]:
    """Run the next tokens of the sequences; (sequence, token, log-probability) of those drawn."""
    ids: list[int] = []
    drawing: list[Sequence] = []
    rows: list[int] = []
    scored: list[tuple[Sequence, range]] = []
    scored_rows: list[int] = []
    for sequence, count in plan:
        first, start = sequence.computed, len(ids)
        end = first + count
        ids += sequence.ids[first:end]
        if end == len(sequence.ids) < sequence.max_len:
            drawing.append(sequence)
            rows.append(len(ids) - 1)
        if sequence.wants_prompt_logprobs:
            positions = _unscored(sequence, first, end)
            scored.append((sequence, positions))
            scored_rows += [start + p - first for p in positions]
    output = model.step(
        np.array(ids, np.int64),
        pages,
        PagedBatch([s.pages for s, _ in plan], [s.computed for s, _ in plan], [n for _, n in plan]),
        np.array(rows + scored_rows, np.int64),
        routes=any(s.keep_routes for s, _ in plan),
    )
    if output.routes_TLK is not None:
        _record_routes(plan, output.routes_TLK)
    if scored:
        _record_prompt_logprobs(scored, output.logits_RV[len(rows) :], sampler)
    if not drawing:
        return []
    drawn = sampler.sample(output.logits_RV[: len(rows)], [s.sampler for s in drawing])
    return [(s, token, logprob) for s, (token, logprob) in zip(drawing, drawn, strict=True)]


def _unscored(sequence: Sequence, first: int, end: int) -> range:
    """Positions of this pass whose next token is one of the prompt without a log-probability."""
    known = sequence.prompt_logprobs
    assert known is not None
    return range(max(first, len(known) - 1), min(end, sequence.num_prompt - 1))


def _record_routes(plan: list[tuple[Sequence, int]], routes_TLK: np.ndarray) -> None:
    start = 0
    for sequence, count in plan:
        if sequence.keep_routes:
            sequence.add_routes(sequence.computed, routes_TLK[start : start + count])
        start += count


def _record_prompt_logprobs(
    scored: Iterable[tuple[Sequence, range]], logits_RV: np.ndarray, sampler: Sampler
) -> None:
    at = 0
    for sequence, positions in scored:
        if not positions:
            continue
        logits = logits_RV[at : at + len(positions)]
        at += len(positions)
        targets = sequence.ids[positions.start + 1 : positions.stop + 1]
        states = [sequence.sampler] * len(positions)
        assert sequence.prompt_logprobs is not None
        sequence.prompt_logprobs += sampler.prompt_logprobs(logits, targets, states)
