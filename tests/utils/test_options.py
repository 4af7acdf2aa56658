"""The stop flag keeps the first reason."""

import threading

from paddle_ernie.utils.options import RunOptions, StopFlag


def test_stop_flag() -> None:
    stop = StopFlag()
    assert not stop and stop.reason == ""
    threading.Thread(target=stop.set, args=("SIGTERM",)).start()
    while not stop:
        pass
    stop.set("SIGINT")
    assert stop and stop.reason == "SIGTERM"


def test_every_run_has_its_own_flag() -> None:
    first, second = RunOptions(), RunOptions()
    first.stop.set("x")
    assert not second.stop and first.resume == "auto"
