"""One model for all sides."""

from pathlib import Path

import numpy as np
import pytest

from paddle_ernie.bench.ours.export import export_model, random_tokenizer
from paddle_ernie.bench.sides import model_request
from paddle_ernie.convert.hf_import import read_hf
from paddle_ernie.models.model_dir import load_model_dir, model_arrays
from tests.bench.tiny import TINY


@pytest.mark.parametrize("vocab_size", [320, 1000])
def test_a_tokenizer_has_exactly_the_ids_of_the_model(vocab_size: int) -> None:
    assert random_tokenizer(vocab_size).vocab_size == vocab_size


def test_rivals_read_the_very_same_weights(tmp_path: Path) -> None:
    request = {
        "model": model_request(TINY),
        "model_dir": str(tmp_path / "ours"),
        "public": str(tmp_path / "public"),
    }
    assert export_model(request)["bytes"] > 4 * 320 * 32
    ours = model_arrays(load_model_dir(tmp_path / "ours"))
    theirs = read_hf(tmp_path / "public").arrays
    assert set(theirs) == set(ours)
    for name, array in ours.items():
        np.testing.assert_array_equal(theirs[name], array, err_msg=name)


def test_a_model_that_is_there_is_only_converted(tmp_path: Path) -> None:
    request = {"model": model_request(TINY), "model_dir": str(tmp_path / "m"), "public": None}
    export_model(request)
    before = (tmp_path / "m" / "model.safetensors").stat().st_mtime_ns
    export_model({**request, "model": None, "public": str(tmp_path / "public")})
    assert (tmp_path / "m" / "model.safetensors").stat().st_mtime_ns == before
    assert (tmp_path / "public" / "config.json").is_file()
