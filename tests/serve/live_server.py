"""The whole server in a thread: engine, application, uvicorn on a port of the loopback."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx

from paddle_ernie.serve.api.app import create_app
from paddle_ernie.serve.api.settings import ServerSettings
from paddle_ernie.serve.engine.options import EngineOptions
from paddle_ernie.serve.engine.worker import EngineWorker
from paddle_ernie.serve.processes import run
from paddle_ernie.serve.processes.shutdown import SideServer

START_SECONDS = 120  # the first time, operators are compiled


class LiveServer:
    """`url` answers until `stop`."""

    def __init__(self, model_dir: Path, options: EngineOptions, settings: ServerSettings) -> None:
        self._arguments = model_dir, options, settings
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()
        assert self._started.wait(START_SECONDS), "the server does not start"
        if self._failure is not None:
            raise self._failure
        self.client = httpx.Client(base_url=self.url, timeout=30)

    def stop(self) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join(START_SECONDS)

    def post(self, path: str, **body) -> httpx.Response:
        return self.client.post(path, json=body)

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        model_dir, options, settings = self._arguments
        self.worker = EngineWorker(model_dir, options)
        await self.worker.start()
        try:
            self.app = create_app(self.worker, settings)
            listener = run.bind("127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            self._server = SideServer(run.server_config(self.app, settings))
            task = asyncio.ensure_future(self._server.serve([listener]))
            while not self._server.started:
                await asyncio.sleep(0.01)
            self._started.set()
            await task
        finally:
            await self.worker.close()


@contextlib.contextmanager
def serving(model_dir: Path, tmp_path: Path, engine=None, **settings) -> Iterator[LiveServer]:
    """A server of a model; `engine`: EngineOptions, the rest are ServerSettings."""
    small = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128,
        "num_pages": 60,
        "max_model_len": 512,
    }
    options = {**small, **(engine or {})}
    own = ServerSettings(model_dir=model_dir, access_log=tmp_path / "access.jsonl", **settings)
    server = LiveServer(model_dir, EngineOptions(**options), own)
    try:
        yield server
    finally:
        server.stop()
