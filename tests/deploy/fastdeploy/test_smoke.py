"""The smoke client against our real server: everything passes; what is wrong is found and told."""

import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.serve.live_server import serving
from tests.serve.snapshots import save_snapshot

GROUPS = ("plain", "generation", "streams", "control")
SMOKE = Path(__file__).resolve().parents[3] / "deploy" / "fastdeploy" / "smoke.py"


def smoke(*options: str) -> tuple[int, dict[str, tuple[str, str]], str]:
    """Exit code; result and remark by check; all it said."""
    ran = subprocess.run(
        [sys.executable, SMOKE, *options], capture_output=True, text=True, timeout=120, check=False
    )
    rows = [line.split(maxsplit=4) for line in ran.stdout.splitlines()[1:]]
    found = {
        row[1]: (row[2], row[4] if len(row) > 4 else "") for row in rows if row and row[0] in GROUPS
    }
    return ran.returncode, found, ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("smoke")
    model = save_snapshot(folder / "weights" / "1", 1)
    save_snapshot(folder / "weights" / "2", 2)
    with serving(
        model,
        folder,
        {"weights_dir": folder / "weights", "max_model_len": 4096, "num_pages": 128},
        served_model_name="tiny",
        api_keys=("key",),
        max_concurrency=8,
    ) as server:
        yield server.url


def test_our_server_keeps_the_whole_contract(url: str) -> None:
    code, found, text = smoke(
        url, "--api-key", "key", "--ours", "--control", "--sleep", "--update", "2",
        "--overload", "24",
    )  # fmt: skip
    assert code == 0, text
    assert {name: result for name, (result, _) in found.items() if result != "pass"} == {}
    assert len(found) > 35


def test_what_was_not_asked_for_is_skipped_with_its_reason(url: str) -> None:
    code, found, text = smoke(url, "--api-key", "key", "--only", "control", "plain")
    assert code == 0, text
    assert found["pause_and_resume"] == ("skip", "no --control given")
    assert found["update"] == ("skip", "no --update given")
    assert found["overload"] == ("skip", "no --overload given")
    assert "chat_stream" not in found


def test_a_wrong_key_fails(url: str) -> None:
    code, found, _ = smoke(url, "--api-key", "other", "--only", "generation")
    assert code == 1
    assert found["chat"][0] == "fail" and "401" in found["chat"][1]


class _Broken(BaseHTTPRequestHandler):
    """Answers everything with the same chat, whose stream has no end."""

    def do_GET(self) -> None:
        self._answer({"object": "list", "data": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if b'"stream":true' in body.replace(b" ", b""):
            self._send(b'data: {"choices": []}\n\n', "text/event-stream")
        else:
            self._answer({"object": "chat.completion", "choices": []})

    def _answer(self, body: object) -> None:
        self._send(json.dumps(body).encode(), "application/json")

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_a_server_that_answers_nonsense_fails_every_check() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Broken) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        code, found, text = smoke(
            f"http://127.0.0.1:{server.server_port}", "--ours", "--control", "--update", "1",
            "--api-key", "k",
        )  # fmt: skip
        server.shutdown()
    assert code == 1
    passed = {name for name, (result, _) in found.items() if result == "pass"}
    # Nothing else can be told apart by an answer of 200.
    assert passed <= {"health", "ping", "abort_all"}, text
    assert "chat_stream" in found and "[DONE]" in text


def test_no_server_and_bad_options() -> None:
    code, _, text = smoke("http://127.0.0.1:9")
    assert code == 2 and "does not answer" in text
    code, _, text = smoke("127.0.0.1:8188")
    assert code == 2 and "expected http://HOST:PORT" in text
