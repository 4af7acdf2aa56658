"""A chat on the terminal, on the same engine as the server. Called by `tools/generate.py --chat`.

    line typed -> ids of the new turn, after the ids so far -> Engine -> text as it comes

Earlier turns are kept as the ids they were: what the model said is never encoded again, so it sees
exactly what it wrote, and its keys and values come from the prefix cache. Ctrl-C stops an answer
(which stays, as far as it came); at the prompt it leaves, as do Ctrl-D and /quit.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType

from rich.console import Console
from rich.text import Text

from paddle_ernie.serve.api.chat_template import ChatTemplate
from paddle_ernie.serve.engine.engine import Engine
from paddle_ernie.serve.types import FinishReason, GenerateRequest, SamplingParams
from paddle_ernie.utils.errors import InputError

HELP = """/reset          forget the conversation
/system TEXT    begin anew with this system prompt (without TEXT: with none)
/quit           leave (also Ctrl-D, or Ctrl-C at the prompt); Ctrl-C stops an answer"""

PLACEHOLDER = "\ue000answer\ue000"
"""Stands for an answer when a template is asked what comes after one: private, so in no text."""

CONTROL_CHARACTERS = {
    code: "\ufffd" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"
}

Message = dict[str, str]


class Conversation:
    """The ids so far, and how a template continues them."""

    def __init__(
        self, template: ChatTemplate, encode: Callable[[str], list[int]], system: str = ""
    ) -> None:
        self._template = template
        self._encode = encode
        self._first: list[Message] = [{"role": "system", "content": system}] if system else []
        self._last_user: Message | None = None
        self._before: tuple[Message | None, list[int]] | None = None
        self.ids: list[int] = []

    def ask(self, text: str) -> tuple[int, ...]:
        """The prompt: everything so far, then the user's turn."""
        user = {"role": "user", "content": text}
        if self._last_user is None:
            ids = self._encode(self._template.render([*self._first, user]))
        else:
            ids = self._follow(self._encode(self._after_answer(self._last_user, user)))
        self._before = self._last_user, self.ids
        self._last_user, self.ids = user, ids
        return tuple(ids)

    def answer(self, ids: list[int]) -> None:
        """The model's turn, as it came."""
        self._before = None
        self.ids = [*self.ids, *ids]

    def take_back(self) -> None:
        """Forget a question that was not answered."""
        assert self._before is not None, "no question is open"
        self._last_user, self.ids = self._before

    def _after_answer(self, before: Message, user: Message) -> str:
        """What the template writes between the end of an answer and the next one."""
        said = {"role": "assistant", "content": PLACEHOLDER}
        text = self._template.render([*self._first, before, said, user])
        _, found, after = text.rpartition(PLACEHOLDER)
        if not found:
            raise InputError("the model's chat template leaves earlier answers out; use /reset")
        return after

    def _follow(self, after: list[int]) -> list[int]:
        # An answer that ended itself has its end-of-turn token; one that was cut gets it here.
        if after and self.ids and self.ids[-1] == after[0] and after[0] in self._template.stop_ids:
            after = after[1:]
        return [*self.ids, *after]


@dataclass
class Answer:
    """One answer, while it comes."""

    ids: list[int] = field(default_factory=list)
    began_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    reason: FinishReason | None = None
    error: str | None = None

    def speed(self) -> str:
        """For the line below the answer."""
        if not self.times_s:
            return "no tokens"
        text = f"{len(self.ids)} tokens, the first after {self.times_s[0] - self.began_s:.2f} s"
        seconds = self.times_s[-1] - self.times_s[0]
        if len(self.ids) > 1 and seconds > 0:
            text += f", {(len(self.ids) - 1) / seconds:.1f} tokens/s"
        return f"{text}, stopped" if self.reason is FinishReason.ABORT else text


class TerminalChat:
    """Reads lines, shows answers."""

    def __init__(
        self,
        engine: Engine,
        template: ChatTemplate,
        sampling: SamplingParams,
        console: Console,
        read: Callable[[str], str] = input,
    ) -> None:
        self._engine = engine
        self._template = template
        stop_ids = template.stop_ids | {engine.tokenizer.eos_id}
        self._sampling = replace(sampling, stop_token_ids=sampling.stop_token_ids | stop_ids)
        self._console = console
        self._read = read
        self._turns = 0
        self._conversation = self._new("")

    def run(self) -> None:
        """Until the user leaves."""
        self._say("/help for commands, Ctrl-D to leave")
        while True:
            try:
                line = self._read("> ").strip()
            except (EOFError, KeyboardInterrupt):
                self._console.print()
                return
            if line == "/quit":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._turn(line)

    def _new(self, system: str) -> Conversation:
        tokenizer = self._engine.tokenizer
        return Conversation(
            self._template, lambda text: tokenizer.encode(text, allow_special=True), system
        )

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        if name == "/reset":
            self._conversation = self._new("")
            self._say("forgotten")
        elif name == "/system":
            self._conversation = self._new(argument.strip())
            self._say("a new conversation with that system prompt")
        else:
            self._say(HELP)

    def _turn(self, text: str) -> None:
        longest = self._engine.info.max_model_len
        prompt = self._conversation.ask(text)
        if len(prompt) >= longest:
            self._conversation.take_back()
            self._say(f"that makes {len(prompt)} tokens of at most {longest}; /reset begins anew")
            return
        answer = self._generate(prompt)
        self._conversation.answer(answer.ids)
        self._console.print()
        if answer.error:
            self._say(answer.error)
        used = len(self._conversation.ids)
        self._say(f"{answer.speed()}; {used} of {longest} positions used")

    def _generate(self, prompt: tuple[int, ...]) -> Answer:
        self._turns += 1
        sampling = replace(self._sampling, seed=self._sampling.seed + self._turns - 1)
        request = GenerateRequest(f"turn-{self._turns}", prompt, sampling)
        answer = Answer(began_s=time.perf_counter())
        with _interrupts() as stop:
            self._engine.add(request)
            while answer.reason is None:
                if stop.requested:
                    self._engine.abort([request.request_id])
                for output in self._engine.step():
                    answer.ids += output.token_ids
                    answer.times_s += [time.perf_counter()] * len(output.token_ids)
                    answer.reason, answer.error = output.finish_reason, output.error
                    self._show(output.text)
        return answer

    def _show(self, text: str) -> None:
        # A model may write escape sequences, and the terminal would obey.
        self._console.file.write(text.translate(CONTROL_CHARACTERS))
        self._console.file.flush()

    def _say(self, text: str) -> None:
        self._console.print(Text(text, style="dim"))


@dataclass
class _Stop:
    requested: bool = False


@contextmanager
def _interrupts() -> Iterator[_Stop]:
    """While open, Ctrl-C is noted instead of breaking into a step of the engine."""
    stop = _Stop()

    def note(_number: int, _frame: FrameType | None) -> None:
        stop.requested = True

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)
