"""One signal asks for a stop, a second ends the process; workers and old handlers are respected."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paddle_ernie.utils.options import StopFlag
from paddle_ernie.utils.signals import STOP_SIGNALS, stop_on_signals

ROOT = Path(__file__).resolve().parents[2]
HEAD = """
import multiprocessing, os, signal, sys, time
from paddle_ernie.utils.options import StopFlag
from paddle_ernie.utils.signals import stop_on_signals
stop = StopFlag()
def say(text):
    print(text, flush=True)
"""


def start(program: str) -> "subprocess.Popen[str]":
    child = subprocess.Popen(
        [sys.executable, "-c", HEAD + program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_sets_the_flag_and_handlers_come_back(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    stop = StopFlag()
    with stop_on_signals(stop):
        os.kill(os.getpid(), number)
        limit = time.monotonic() + 5
        while not stop and time.monotonic() < limit:
            time.sleep(0.001)
    assert stop.reason == number.name
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before


def test_the_second_signal_ends_the_process_and_its_workers() -> None:
    child = start("""
with stop_on_signals(stop):
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    worker.start()
    say("ready")
    say(worker.pid)
    while True:
        time.sleep(0.01)
""")
    assert child.stdout is not None
    worker = int(child.stdout.readline())
    child.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=10)
    assert child.returncode == 130
    assert "SIGTERM: stopping after the current step" in errors and "stopped at once" in errors
    limit = time.monotonic() + 5
    while is_running(worker) and time.monotonic() < limit:
        time.sleep(0.01)
    assert not is_running(worker)


def test_forked_workers_leave_ctrl_c_to_their_parent_and_end_on_sigterm() -> None:
    child = start("""
def work():
    say("ready")
    time.sleep(0.5)
    say("survived")
    time.sleep(60)
with stop_on_signals(stop):
    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    time.sleep(0.1)
    os.kill(worker.pid, signal.SIGINT)
    time.sleep(0.6)
    worker.terminate()
    worker.join(5)
    say(worker.exitcode)
    say(bool(stop))
""")
    output, errors = child.communicate(timeout=20)
    assert output.split() == ["survived", "-15", "False"], errors


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
