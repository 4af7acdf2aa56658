"""Generated ids to text as they come, up to a stop string. One per sequence, called by the engine.

    ids -> bytes -> whole characters -> held | certain
                                        held: the longest end that may begin a stop string

Promises: pieces joined are the text; no piece ends inside a character or inside what turns out to
be a stop string. Of several stop strings the one complete first wins, whatever the tokens.
"""

from collections.abc import Sequence

from paddle_ernie.data.tokenizer import Streamer


class Detokeniser:
    """`push` ids one by one; once `stopped`, nothing more comes."""

    def __init__(self, streamer: Streamer, stop: Sequence[str], include_stop: bool) -> None:
        self._streamer = streamer
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._held = ""
        self.stopped = False

    def push(self, token_id: int, *, may_stop: bool = True) -> str:
        """Text that became certain. `may_stop` False: a stop string that ends here is text."""
        text = self._streamer.push(token_id)
        return self._pass_on(text, may_stop) if self._stop else text

    def flush(self) -> str:
        """The rest, at the end of a sequence without a stop string."""
        text, self._held = self._held + self._streamer.flush(), ""
        return text

    def _pass_on(self, text: str, may_stop: bool) -> str:
        self._held += text
        if may_stop and (match := self._first_match()):
            begin, end = match
            text, self._held = self._held[: end if self._include_stop else begin], ""
            self.stopped = True
            return text
        certain = len(self._held) - self._possible_beginning()
        text, self._held = self._held[:certain], self._held[certain:]
        return text

    def _first_match(self) -> tuple[int, int] | None:
        """(begin, end) of the stop string complete first; of two, the longer one."""
        found = [(at, at + len(s)) for s in self._stop if (at := self._held.find(s)) >= 0]
        return min(found, key=lambda match: (match[1], match[0]), default=None)

    def _possible_beginning(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        return max(
            length
            for stop in self._stop
            for length in range(min(len(stop) - 1, len(self._held)), -1, -1)
            if self._held.endswith(stop[:length])
        )
