"""What control calls have done to a fleet of engine processes: a process that starts anew needs it.

Kept by serve/processes/broadcast.py, read by serve/processes/fleet.py.
"""

import json
from dataclasses import dataclass

UPDATE, PAUSE, RESUME = "/v1/update_weights", "/v1/pause", "/v1/resume"
SLEEP, WAKEUP = "/v1/sleep", "/v1/wakeup"


@dataclass
class ControlState:
    """What a process that starts anew must be told."""

    update: bytes | None = None
    paused: bool = False
    sleep_query: str | None = None

    def note(self, path: str, query: str, body: bytes) -> None:
        """A control call succeeded everywhere."""
        if path == UPDATE:
            self.update = body
        elif path == PAUSE:
            self.paused = True
        elif path == RESUME:
            self.paused = False
        elif path == SLEEP:
            self.sleep_query = query
        elif path == WAKEUP:
            self.sleep_query, self.paused = None, False


def succeeded(status: int, body: bytes) -> bool:
    """Whether a control call did what it should: its body may say otherwise than its status."""
    if status != 200:
        return False
    try:
        said = json.loads(body or b"{}")
    except ValueError:
        return True
    return not isinstance(said, dict) or said.get("status", "success") == "success"
