"""Serve a run with `visualdl` and photograph its pages in headless Chromium.

Used by test_visualdl_page.py, and by hand for the README's picture:

    python tests/integration/visualdl_screenshot.py runs/quickstart docs/images [SCALARS]

SCALARS is a regular expression for the names of the curves to show.
"""

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

START_SECONDS = 60  # visualdl imports Flask, pandas and more; several seconds on a busy machine
PAGE_SECONDS = 60
SETTLE_SECONDS = 1.5  # charts animate after they appear
SEARCH_FIELD = "Search tags in RegExp"
GREY_TOLERANCE = 24  # largest difference between the channels of a pixel that counts as grey
COUNT_COLOURED_PIXELS = f"""
return Array.from(document.querySelectorAll("canvas"), canvas => {{
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    let coloured = 0;
    for (let i = 0; i < pixels.length; i += 4) {{
        const channels = [pixels[i], pixels[i + 1], pixels[i + 2]];
        const range = Math.max(...channels) - Math.min(...channels);
        coloured += pixels[i + 3] > 0 && range > {GREY_TOLERANCE};
    }}
    return coloured;
}});
"""
PAGES = {"scalar": "loss", "histogram": "moe", "text": "Step", "hyper-parameter": "Trial ID"}
"""Page -> a text that is there once its data are."""
OVERVIEW = "loss/train|axis/(full|depth)|eval/(full|small)/bpb|^moe/load|tokens_per_s"
"""The scalars of the README's picture."""

CHROMIUM_ARGUMENTS = (
    "--headless",
    "--no-sandbox",  # Chromium refuses to run as root with its sandbox
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--lang=en-US",  # VisualDL picks its language from Accept-Language and fails without one
    "--window-size=1800,1160",
)


def missing_program() -> str | None:
    """The program these helpers need that is not installed, or None."""
    for name in ("chromium", "chromedriver", "visualdl"):
        if find_program(name) is None:
            return name
    return None


def find_program(name: str) -> str | None:
    """Path of a program beside this Python or on PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


@contextlib.contextmanager
def serve(logdir: Path) -> Iterator[str]:
    """Run `visualdl --logdir` on a free loopback port; yield the address of its page."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [find_program("visualdl"), "--logdir", str(logdir), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--disable-telemetry"]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}/app"
            _wait_for(url, server)
            yield url
        finally:
            server.terminate()
            server.wait(timeout=20)


@contextlib.contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """Headless Chromium with a new, empty profile."""
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = find_program("chromium")
        for argument in (*CHROMIUM_ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(find_program("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


def open_page(driver: webdriver.Chrome, url: str, page: str, expected: list[str]) -> str:
    """Open a page, wait until every text of `expected` is in its DOM; return the DOM's text."""
    driver.get(f"{url}/{page}")
    script = "return document.body.innerText"

    def ready(driver: webdriver.Chrome) -> bool:
        text = driver.execute_script(script)
        return all(item in text for item in expected)

    WebDriverWait(driver, PAGE_SECONDS).until(ready, f"{page}: {expected} did not appear")
    time.sleep(SETTLE_SECONDS)
    return driver.execute_script(script)


def search(driver: webdriver.Chrome, pattern: str) -> None:
    """Type a regular expression into a page's search field: only matching names stay."""
    field = driver.find_element(By.CSS_SELECTOR, f"input[placeholder='{SEARCH_FIELD}']")
    field.send_keys(pattern)
    time.sleep(SETTLE_SECONDS)


def coloured_pixels(driver: webdriver.Chrome) -> list[int]:
    """For each chart on the page, its pixels that are neither white nor grey: drawn data."""
    return driver.execute_script(COUNT_COLOURED_PIXELS)


def _wait_for(url: str, server: subprocess.Popen) -> None:
    # The server answers 500 to a request without Accept-Language.
    request = urllib.request.Request(url, headers={"Accept-Language": "en"})
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"visualdl ended with exit code {server.returncode}")
        with contextlib.suppress(OSError):
            urllib.request.urlopen(request, timeout=5).close()
            return
        time.sleep(0.2)
    raise TimeoutError(f"{url} did not answer within {START_SECONDS} s")


def main(logdir: Path, output: Path, pattern: str = OVERVIEW) -> None:
    """Write `visualdl-<page>.png` for every page; of the scalars, those that match `pattern`."""
    output.mkdir(parents=True, exist_ok=True)
    with serve(logdir) as url, browser() as driver:
        for page, text in PAGES.items():
            open_page(driver, url, page, [text])
            if page == "scalar":
                search(driver, pattern)
            driver.save_screenshot(str(output / f"visualdl-{page}.png"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
