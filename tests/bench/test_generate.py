"""The comparison of generation: ours alone, and beside what is there of the rivals."""

import pytest

from paddle_ernie.bench import generate
from paddle_ernie.bench.generate import bench_generate, rival_modes
from paddle_ernie.bench.sides import Rival, Sides
from paddle_ernie.bench.subject import Subject
from paddle_ernie.utils.errors import PaddleErnieError
from tests.bench.tiny import ALONE, TINY, both_sides, needs_rival, needs_vllm, with_vllm


@pytest.fixture(autouse=True)
def without_features(monkeypatch) -> None:
    monkeypatch.setattr(generate, "bench_serving", lambda *_: [])


@pytest.mark.slow
def test_alone() -> None:
    speeds, latencies = bench_generate(ALONE, TINY, rows=[2], prompt=8, new=4)
    assert (speeds.name, latencies.name) == ("generate-2", "latency-2")
    assert [line["mode"] for line in speeds.values["lines"]] == ["fp32", "bf16", "fp8"]
    line = speeds.values["lines"][0]
    assert line["whole"]["tokens_per_s"] == 2 * 4 / line["whole"]["best"]
    assert line["prefill"]["tokens_per_s"] == 16 / line["prefill"]["best"]
    assert line["decode"]["tokens_per_s"] == 2 / line["decode"]["best"]
    assert line["ratio"] == {"transformers": None, "vLLM": None}
    assert [row[0] for row in latencies.table.rows] == ["ours"] * 3


@needs_rival
@pytest.mark.slow
def test_beside_transformers() -> None:
    same, speeds, _ = bench_generate(both_sides(), TINY, rows=[2], prompt=8, new=4)
    assert same.values["transformers"][0] == 1
    assert speeds.values["missing"] == {}
    assert all(ratio["transformers"] > 0 for ratio in speeds.values["ratio"].values())


@needs_vllm
@pytest.mark.slow
def test_beside_vllm() -> None:
    model = TINY.model_copy(update={"hidden_size": 64, "head_dim": 32})  # its kernels' smallest
    same, speeds, _ = bench_generate(with_vllm(), model, rows=[2], prompt=8, new=4)
    assert same.values["vLLM"][0] == 1
    assert speeds.values["missing"] == {}
    assert all(ratio["vLLM"] > 0 for ratio in speeds.values["ratio"].values())


@pytest.mark.slow
def test_what_our_engine_cannot_do_is_an_error() -> None:
    with pytest.raises(PaddleErnieError, match=r"cannot be measured.*max_model_len is 65"):
        bench_generate(ALONE, TINY, rows=[1], prompt=61, new=4)


def test_every_way_of_every_program_that_is_there(tmp_path) -> None:
    rival = Rival(tmp_path, "")
    dense = TINY.model_copy(update={"moe_layer_start_index": TINY.num_hidden_layers})
    for model, ways in ((TINY, 5), (dense, 2)):
        subject = Subject("", "", model, tmp_path, tmp_path, 320)
        names = list(rival_modes(Sides(1, 1, rival, rival), subject, {}))
        assert len([name for name in names if name.startswith("transformers ")]) == 2 * ways
        assert len([name for name in names if name.startswith("vLLM ")]) == 4
        assert len(names) == len(set(names))
        assert list(rival_modes(ALONE, subject, {})) == []
