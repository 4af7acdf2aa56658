"""Whose request comes next: the client that was served least. Called by the scheduler.

A client's service is the number of tokens run for it. One that comes, or comes back after a pause,
starts from the least of those that are there, so that nobody saves up turns.
"""

from collections import Counter

REMEMBERED = 1024
"""Clients that are gone and still known by what they were served; a name may be anything."""


class Fairness:
    """Counts tokens by client."""

    def __init__(self) -> None:
        self._present: Counter[str] = Counter()
        """Requests in the engine."""
        self._served: dict[str, int] = {}

    def enter(self, client: str) -> None:
        """A request came."""
        if client not in self._present:
            floor = min((self._served[other] for other in self._present), default=0)
            self._served[client] = max(self._served.get(client, 0), floor)
        self._present[client] += 1

    def leave(self, client: str) -> None:
        """A request has ended."""
        self._present[client] -= 1
        if not self._present[client]:
            del self._present[client]
        if len(self._served) > len(self._present) + REMEMBERED:
            self._served = {name: self._served[name] for name in self._present}

    def charge(self, client: str, tokens: int) -> None:
        """Tokens are run for a client."""
        self._served[client] += tokens

    def served(self, client: str) -> int:
        """Tokens so far, comparable between clients."""
        return self._served[client]
