"""Tiny models with a tokenizer, their directories, and engines on them."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import model_arrays, save_model_dir
from paddle_ernie.serve.engine.engine import Engine
from paddle_ernie.serve.engine.options import EngineOptions
from paddle_ernie.serve.engine.weights import ServedWeights, pack_weights
from tests.serve.engines import TEXT, TINY
from tests.serve.live_server import LiveServer, serving
from tests.serve.talking import save_talking_model


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Byte-level, with chat tokens; about 340 ids."""
    return Tokenizer.train(TEXT * 20, 340)


@pytest.fixture(scope="session")
def make_arrays() -> Callable[..., dict[str, np.ndarray]]:
    """make_arrays(seed=0, **config changes): weights with correction biases that matter."""

    def make(seed: int = 0, **changes) -> dict[str, np.ndarray]:
        model = ErnieMoeModel(TINY.model_copy(update=changes), seed=seed)
        rng = np.random.default_rng(seed)
        for bias in model.correction_biases().values():
            bias.set_value(rng.normal(0, 0.1, bias.shape).astype(np.float32))
        return {name: array.copy() for name, array in model_arrays(model).items()}

    return make


@pytest.fixture(scope="session")
def save_model(make_arrays, tokenizer, tmp_path_factory) -> Callable[..., Path]:
    """save_model(path=None, seed=0, **config changes): a model directory with its tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(folder)

    def save(path: Path | None = None, seed: int = 0, **changes) -> Path:
        path = path or tmp_path_factory.mktemp("model") / "model"
        config = TINY.model_copy(update=changes)
        save_model_dir(path, make_arrays(seed, **changes), config, folder)
        return path

    return save


@pytest.fixture(scope="session")
def model_dir(save_model) -> Path:
    """The tiny model's directory."""
    return save_model()


@pytest.fixture(scope="session")
def make_weights(make_arrays) -> Callable[..., ServedWeights]:
    """make_weights(version=0, seed=0, options=EngineOptions(), **config changes)."""

    def make(
        version: int = 0, seed: int = 0, options: EngineOptions | None = None, **changes
    ) -> ServedWeights:
        config = TINY.model_copy(update=changes)
        arrays = make_arrays(seed, **changes)
        return pack_weights(arrays, config, version, options or EngineOptions())

    return make


@pytest.fixture(scope="session")
def weights(make_weights) -> ServedWeights:
    """Version 0 of the tiny model."""
    return make_weights()


@pytest.fixture(scope="session")
def make_engine(make_weights, tokenizer) -> Callable[..., Engine]:
    """make_engine(weights=the tiny model's, **EngineOptions)."""
    packed = cache(lambda precision: make_weights(options=EngineOptions(precision=precision)))

    def make(own: ServedWeights | None = None, **changes) -> Engine:
        small = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "num_pages": 40}
        options = EngineOptions(**{**small, "max_model_len": 512, **changes})
        return Engine(own or packed(options.precision), tokenizer, options)

    return make


@pytest.fixture(scope="session")
def talking_dir(tmp_path_factory) -> Path:
    """A tiny model that knows the conversations of tests/serve/talking.py by heart."""
    return save_talking_model(tmp_path_factory.mktemp("talking") / "model")


@pytest.fixture(scope="session")
def talking(talking_dir, tmp_path_factory) -> Iterator[LiveServer]:
    """It, served over a socket as `talker`, with everything the API has."""
    folder = tmp_path_factory.mktemp("server")
    with serving(talking_dir, folder, served_model_name="talker") as server:
        yield server
