"""Any prompt is continued, by any model; what is written ends at end of text."""

import pytest

from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.decoding import generate
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import model_arrays
from paddle_ernie.train.continuation import continue_text
from tests.train.tiny import TINY


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["def main():\n    return 42\n" * 20], 300)


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> ErnieMoeModel:
    """Its vocabulary is padded past the tokenizer's, and it likes the ids that are only padding."""
    model = ErnieMoeModel(TINY.model_copy(update={"vocab_size": tokenizer.vocab_size + 50}))
    model_arrays(model)["embed_tokens"][tokenizer.vocab_size :] *= 5
    return model


def test_only_ids_of_the_tokenizer_are_written(model: ErnieMoeModel, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("def ")
    free = list(generate(model, ids, max_new_tokens=20, temperature=0.0))
    assert max(free) >= tokenizer.vocab_size  # what it would write
    assert continue_text(model, tokenizer, "def ", max_tokens=20)


@pytest.mark.parametrize("prompt", ["", "x" * 5000, "\0\udcff", "<|endoftext|>"])
def test_odd_prompts(model: ErnieMoeModel, tokenizer: Tokenizer, prompt: str) -> None:
    text = continue_text(model, tokenizer, prompt, max_tokens=8, temperature=1.0, seed=3)
    assert text == continue_text(model, tokenizer, prompt, max_tokens=8, temperature=1.0, seed=3)


def test_more_tokens_than_the_model_is_long(model: ErnieMoeModel, tokenizer: Tokenizer) -> None:
    seen = []
    continue_text(
        model,
        tokenizer,
        "return 42\n" * 9,
        max_tokens=10_000,
        temperature=3.0,
        before_token=lambda: seen.append(1),
    )
    assert 1 < len(seen) <= TINY.max_position_embeddings


def test_before_token_ends_the_work(model: ErnieMoeModel, tokenizer: Tokenizer) -> None:
    calls = []

    def stop() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        continue_text(model, tokenizer, "x", max_tokens=50, temperature=3.0, before_token=stop)
    assert len(calls) == 3
