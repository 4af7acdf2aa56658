"""The chat on the terminal, on a real engine."""

import io
import os
import signal
import threading

import pytest
from rich.console import Console

from paddle_ernie.serve.api.chat_template import load_chat_template
from paddle_ernie.serve.terminal import PLACEHOLDER, Conversation, TerminalChat
from paddle_ernie.serve.types import SamplingParams
from paddle_ernie.utils.errors import InputError


@pytest.fixture
def template(tokenizer):
    return load_chat_template(tokenizer)


@pytest.fixture
def conversation(template, tokenizer):
    def make(system=""):
        return Conversation(template, lambda t: tokenizer.encode(t, allow_special=True), system)

    return make


@pytest.fixture
def chat(make_engine, template):
    """chat(lines, **sampling): (what was shown, the chat, its engine)."""

    def run(lines, positions=512, **sampling):
        engine = make_engine(max_model_len=positions, num_pages=positions // 8)
        screen, pending = io.StringIO(), list(lines)

        def read(_prompt):
            if not pending:
                raise EOFError
            line = pending.pop(0)
            return line() if callable(line) else line

        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 12, **sampling})
        own = TerminalChat(engine, template, params, Console(file=screen, width=200), read)
        own.run()
        return screen.getvalue(), own, engine

    return run


def test_a_second_turn_reads_as_the_template_writes_it(conversation, template, tokenizer):
    talk = conversation("Be brief.")
    talk.ask("What is 2 + 3?")
    end = tokenizer.token_id("<|turn_end|>")
    for answer in ([*tokenizer.encode("5"), end], tokenizer.encode("5")):
        copy = conversation("Be brief.")
        copy.ask("What is 2 + 3?")
        copy.answer(answer)
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is 2 + 3?"},
            {"role": "assistant", "content": "5"},
            {"role": "user", "content": "And 4 + 4?"},
        ]
        expected = tokenizer.encode(template.render(messages), allow_special=True)
        assert list(copy.ask("And 4 + 4?")) == expected


def test_earlier_turns_stay_the_ids_they_were(conversation, tokenizer):
    talk = conversation()
    talk.ask("def")
    odd = [tokenizer.encode_bytes(bytes([c]))[0] for c in b"main"]  # as no encoder would cut it
    assert odd != tokenizer.encode("main")
    talk.answer(odd)
    before = list(talk.ids)
    prompt = talk.ask("again")
    assert list(prompt[: len(before)]) == before
    assert PLACEHOLDER not in tokenizer.decode(prompt)
    talk.take_back()
    assert talk.ids == before
    assert talk.ask("again") == prompt


def test_a_template_that_drops_answers_is_refused(tokenizer):
    source = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    template = load_chat_template(tokenizer, override=source)
    talk = Conversation(template, tokenizer.encode)
    talk.ask("a")
    talk.answer([40])
    with pytest.raises(InputError, match="leaves earlier answers out"):
        talk.ask("b")


def test_turns_are_answered_and_their_cache_is_used(chat):
    shown, own, engine = chat(["def main " * 20, "", "and then?", "/quit", "never read"])
    assert shown.count("tokens/s") == 2 and "of 512 positions used" in shown
    stats = engine.stats()
    assert stats.finished == 2 and stats.running == 0
    assert stats.cached_tokens >= 64  # the first turn's pages
    assert len(own._conversation.ids) > 24


def test_commands(chat):
    shown, own, _ = chat(["def", "/system You are terse.", "def", "/reset", "/what", "/help"])
    assert own._conversation.ids == []
    assert "forgotten" in shown and "new conversation" in shown
    assert shown.count("/reset          forget") == 2


def test_a_conversation_that_is_too_long_is_said_and_goes_on(chat):
    shown, _, engine = chat(["def " * 1500, "def"])
    assert "/reset begins anew" in shown
    assert engine.stats().finished == 1


def test_ctrl_c_stops_the_answer_and_the_chat_goes_on(chat):
    def interrupting():
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        return "def"

    shown, _, engine = chat([interrupting, "def"], positions=4096, max_tokens=4000, min_tokens=4000)
    assert "stopped" in shown
    stats = engine.stats()
    assert (stats.aborted, stats.finished) == (1, 2)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_escape_sequences_are_not_passed_to_the_terminal(chat):
    _, own, _ = chat([])
    own._show("a\x1b[2Jb\x07\n\tc\x9b")
    assert own._console.file.getvalue().endswith("a\ufffd[2Jb\ufffd\n\tc\ufffd")
