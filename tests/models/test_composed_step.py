import numpy as np
import pytest

from paddle_ernie.models.composed_step import ComposedStep
from paddle_ernie.models.inference import InferenceModel
from paddle_ernie.ops import library
from paddle_ernie.ops.numerics import BF16, FP8, FP32
from paddle_ernie.ops.paged_attention import PagedBatch


@pytest.mark.skipif(not library.loaded(), reason="compares with the compiled step")
@pytest.mark.parametrize("recipe", [FP32, BF16, FP8], ids=["fp32", "bf16", "fp8"])
def test_it_computes_what_the_compiled_step_computes(make_model, recipe):
    model = make_model(3)
    packed, composed = InferenceModel(model, recipe=recipe), ComposedStep(model, recipe)
    rng = np.random.default_rng(0)
    results = []
    for step in (packed._body.step, composed.step):
        pages = packed.new_pages(4)
        tables = [pages.allocate(2), pages.allocate(2)]
        rng = np.random.default_rng(0)
        outputs = []
        for lengths, new in (([0, 0], [70, 3]), ([70, 3], [1, 9])):
            ids = rng.integers(0, 96, sum(new))
            rows = np.array([sum(new) - 1, 0])
            outputs += step(ids, pages, PagedBatch(tables, lengths, new), rows, True)
        results.append(outputs)
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)
