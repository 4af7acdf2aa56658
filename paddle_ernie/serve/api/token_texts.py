"""Log-probabilities as JSON: FastDeploy's spelling of single tokens, for chats and completions.

A token is not always text: bytes inside a character are written "bytes:\\xe4\\xbd", control tokens
by their name, ids that no token has "token_id:7".
"""

from collections.abc import Sequence
from typing import Any

from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.serve.types import TokenLogprob

Json = dict[str, Any]


class TokenTexts:
    """The text of every id, made when first asked for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._table = tokenizer.table
        self._names = {token: name for name, token in tokenizer.added_tokens.items()}
        self._known: dict[int, tuple[str, list[int]]] = {}

    def text(self, token: int, *, decode: bool = True) -> str:
        """As in `token`; not decoded: "token_id:7"."""
        return self._spell(token)[0] if decode else f"token_id:{token}"

    def chat(
        self, ids: Sequence[int], logprobs: Sequence[TokenLogprob], *, decode: bool = True
    ) -> Json:
        """A chat's `logprobs`."""
        content = [
            {
                **self._entry(token, found.logprob, decode),
                "top_logprobs": [
                    {**self._entry(other, logprob, decode), "top_logprobs": None}
                    for other, logprob in found.top
                ],
            }
            for token, found in zip(ids, logprobs, strict=True)
        ]
        return {"content": content, "refusal": None}

    def completion(
        self, ids: Sequence[int], logprobs: Sequence[TokenLogprob], *, decode: bool = True
    ) -> Json:
        """A completion's `logprobs`."""
        return {
            "tokens": [self.text(token, decode=decode) for token in ids],
            "token_logprobs": [found.logprob for found in logprobs],
            "top_logprobs": [
                {self.text(other, decode=decode): logprob for other, logprob in found.top}
                for found in logprobs
            ],
            "text_offset": None,
        }

    def prompt(
        self,
        ids: Sequence[int],
        logprobs: Sequence[TokenLogprob | None],
        *,
        decode: bool = True,
    ) -> list[Json | None]:
        """`prompt_logprobs`: by id, the prompt's token first, then the likeliest; null at first."""
        return [
            None if found is None else self._candidates(token, found, decode)
            for token, found in zip(ids, logprobs, strict=True)
        ]

    def _candidates(self, token: int, found: TokenLogprob, decode: bool) -> Json:
        ranks = {other: rank for rank, (other, _) in enumerate(found.top, 1)}
        pairs = {token: found.logprob, **dict(found.top)}
        return {
            str(other): {
                "logprob": logprob,
                "rank": ranks.get(other),
                "decoded_token": self.text(other) if decode else None,
            }
            for other, logprob in pairs.items()
        }

    def _entry(self, token: int, logprob: float, decode: bool) -> Json:
        text, data = self._spell(token)
        if not decode:
            text = f"token_id:{token}"
        return {"token": text, "logprob": logprob, "bytes": data}

    def _spell(self, token: int) -> tuple[str, list[int]]:
        if token not in self._known:
            known = token < len(self._table)  # models may have more ids than their tokenizer
            data = self._table[token] if known else b""
            data = data or self._names.get(token, f"token_id:{token}").encode()
            try:
                text = data.decode()
            except UnicodeDecodeError:
                text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
            self._known[token] = text, list(data)
        return self._known[token]
