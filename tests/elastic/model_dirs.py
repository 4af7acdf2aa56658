"""A small elastic model on disk, with the tokenizer of the text beside it."""

from pathlib import Path

from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.model_dir import save_model_dir
from tests.elastic.conftest import make_model

SENTENCE = "the quick brown fox jumps over a lazy dog while seven wizards mix strange potions"
WORDS = SENTENCE.split()


def write_text(directory: Path, documents: int = 30) -> None:
    """Text files, each with other sentences."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        words = [WORDS[(number * 7 + step * (number + 3)) % len(WORDS)] for step in range(120)]
        (directory / f"{number:03}.txt").write_text(" ".join(words), encoding="utf-8")


def write_model(directory: Path, text: Path) -> None:
    """A random model with a tokenizer trained on `text`."""
    tokenizer = Tokenizer.train((file.read_text() for file in sorted(text.iterdir())), 320)
    tokenizer.save(directory / "tokenizer")
    model = make_model(vocab_size=tokenizer.vocab_size)
    save_model_dir(directory / "model", model, model.config, directory / "tokenizer")
