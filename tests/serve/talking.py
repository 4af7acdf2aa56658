"""A tiny model that has learnt a few conversations by heart, so that replies to a real server are
known: text, reasoning, tool calls. Used by tests of the HTTP API.
"""

import json
from pathlib import Path

import numpy as np
import paddle

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.models.model_dir import model_arrays, save_model_dir
from paddle_ernie.serve.api.chat_template import load_chat_template
from tests.serve.engines import TINY

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": "}é"}}</tool_call>'
REPLIES = {
    "hello": "Hello, naïve 🙂 café.",
    "think": "<think>2 + 3 is 5</think>It is 5.",
    "add": f"<think>a sum</think>Let me.{CALL}",
    "twice": f"{CALL}\n{CALL}",
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "adds",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
]
LEARNING_RATE, LEARNT, MAX_STEPS = 1e-2, 0.01, 400


def chat(word: str) -> list[dict]:
    """A conversation the model knows the reply to."""
    return [{"role": "user", "content": word}]


def asks_for_tools(word: str) -> bool:
    """Whether the conversation was learnt with TOOLS."""
    return word in ("add", "twice")


def save_talking_model(path: Path) -> Path:
    """Teach one and save it."""
    texts = [*REPLIES, *REPLIES.values(), *[json.dumps(tool) for tool in TOOLS]]
    tokenizer = Tokenizer.train([*texts, "\n\nTools you can call:\n To call one:"] * 10, 512)
    config = TINY.model_copy(update={"num_hidden_layers": 2, "initializer_range": 0.1})
    model = _teach(tokenizer, config)
    folder = path.with_name("tokenizer")
    tokenizer.save(folder)
    save_model_dir(path, {n: a.copy() for n, a in model_arrays(model).items()}, config, folder)
    return path


def _teach(tokenizer: Tokenizer, config: ModelConfig) -> ErnieMoeModel:
    ids, labels, documents, positions = _rows(tokenizer)
    model = ErnieMoeModel(config, seed=1)
    optimizer = paddle.optimizer.Adam(LEARNING_RATE, parameters=model.parameters())
    for _ in range(MAX_STEPS):
        loss = model.loss(ids, labels, documents, positions, denominator=(labels >= 0).sum())
        if float(loss.total) < LEARNT:
            return model
        loss.total.backward()
        optimizer.step()
        optimizer.clear_grad()
    raise AssertionError(f"loss {float(loss.total)} after {MAX_STEPS} steps: not learnt by heart")


def _rows(tokenizer: Tokenizer) -> tuple[np.ndarray, ...]:
    template = load_chat_template(tokenizer)
    end = tokenizer.token_id("<|turn_end|>")
    sequences = []
    for word, reply in REPLIES.items():
        prompt = template.render(chat(word), TOOLS if asks_for_tools(word) else None)
        before = tokenizer.encode(prompt, allow_special=True)
        sequences.append((before, [*tokenizer.encode(reply, allow_special=True), end]))
    length = max(len(before) + len(after) for before, after in sequences)
    ids = np.zeros((len(sequences), length), np.int64)
    labels = np.full_like(ids, -100)
    documents = np.zeros_like(ids)
    for row, (before, after) in enumerate(sequences):
        total = len(before) + len(after)
        ids[row, :total] = before + after
        labels[row, len(before) - 1 : total - 1] = after
        documents[row, total:] = 1
    return ids, labels, documents, np.tile(np.arange(length), (len(sequences), 1))
