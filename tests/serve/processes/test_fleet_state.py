"""What restarted processes are told."""

import pytest

from paddle_ernie.serve.processes.fleet_state import ControlState, succeeded


def test_the_state_that_a_new_process_needs():
    state = ControlState()
    state.note("/v1/update_weights", "", b'{"version": "1"}')
    state.note("/v1/pause", "", b"")
    assert (state.update, state.paused) == (b'{"version": "1"}', True)
    state.note("/v1/resume", "", b"")
    state.note("/v1/sleep", "tags=weight", b"")
    assert (state.paused, state.sleep_query) == (False, "tags=weight")
    state.note("/v1/wakeup", "", b"")
    assert state == ControlState(update=b'{"version": "1"}')


@pytest.mark.parametrize(
    ("status", "body", "good"),
    [
        (200, b'{"status": "success"}', True), (200, b"", True), (200, b"{}", True),
        (200, b'{"status": "error"}', False), (500, b'{"status": "success"}', False),
        (200, b"text", True), (200, b"[1]", True), (304, b"", False),
    ],
)  # fmt: skip
def test_whether_a_control_call_succeeded(status, body, good):
    assert succeeded(status, body) is good
