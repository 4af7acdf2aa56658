"""VisualDL's page in a real browser: what a run logs must be visible there.

VISUALDL_LOGDIR=<folder of a run> checks that run instead of a generated one, and
VISUALDL_SCREENSHOTS=<folder> keeps the pictures.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from selenium import webdriver

from paddle_ernie.monitor.reader import Metrics, read_jsonl
from paddle_ernie.monitor.records import MetricRecord
from paddle_ernie.monitor.writer import Monitor
from tests.integration.visualdl_screenshot import (
    browser,
    coloured_pixels,
    missing_program,
    open_page,
    search,
    serve,
)

MISSING = missing_program()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING is not None, reason=f"{MISSING} is not installed"),
]


def generate_run(logdir: Path) -> None:
    """Two starts of a run: one that was killed at step 60 with a checkpoint at 40, and the rest."""
    for steps in (range(10, 61, 10), range(50, 121, 10)):
        with Monitor(logdir / "metrics.jsonl", logdir / "visualdl") as monitor:
            monitor.truncate_after(40)
            monitor.hparams({"learning_rate": 1e-3, "tied": True}, ["loss/train"])
            for step in steps:
                monitor.write(record_of(step))


def record_of(step: int) -> MetricRecord:
    loss = 8.0 * np.exp(-step / 50) + 2
    scalars = {"loss/train": loss, "train/lr": 1e-3, "eval/full/bpb": loss / 3}
    loads = np.random.default_rng(step).integers(200, 600, 16)
    text = f"def step_{step}():"
    return MetricRecord(step, scalars, {"moe/layer_01/load": loads}, {"samples/0": text})


@pytest.fixture(scope="module")
def logdir(tmp_path_factory) -> Path:
    given = os.environ.get("VISUALDL_LOGDIR")
    if given:
        return Path(given)
    path = tmp_path_factory.mktemp("run")
    generate_run(path)
    return path


@pytest.fixture(scope="module")
def metrics(logdir) -> Metrics:
    """What the first run below `logdir` logged."""
    return read_jsonl(sorted(logdir.rglob("metrics.jsonl"))[0])


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory) -> Path:
    given = os.environ.get("VISUALDL_SCREENSHOTS")
    path = Path(given) if given else tmp_path_factory.mktemp("screenshots")
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="module")
def url(logdir) -> Iterator[str]:
    with serve(logdir) as address:
        yield address


@pytest.fixture
def driver() -> Iterator[webdriver.Chrome]:
    with browser() as driver:
        yield driver
        severe = [entry["message"] for entry in driver.get_log("browser") if is_error(entry)]
        assert severe == []


def is_error(entry: dict[str, str]) -> bool:
    return entry["level"] == "SEVERE" and "favicon" not in entry["message"]


@pytest.mark.parametrize("name", ["loss/train", "eval/full/bpb"])
def test_scalars_are_drawn(driver, url, metrics, screenshots, name):
    assert name in metrics.scalars
    groups = sorted({scalar.split("/")[0] for scalar in metrics.scalars})
    open_page(driver, url, "scalar", groups)
    search(driver, f"^{name}$")
    (drawn,) = coloured_pixels(driver)
    assert drawn > 100
    driver.save_screenshot(str(screenshots / f"scalar-{name.replace('/', '-')}.png"))


def test_a_name_that_was_not_logged_shows_nothing(driver, url):
    open_page(driver, url, "scalar", ["loss"])
    search(driver, "^no/such/name$")
    assert coloured_pixels(driver) == []


def test_histograms_are_drawn(driver, url, metrics, screenshots):
    names = sorted(metrics.histograms)
    open_page(driver, url, "histogram", ["moe"])
    search(driver, f"^{names[0]}$")
    drawn = coloured_pixels(driver)
    assert drawn
    assert all(count > 1000 for count in drawn)
    driver.save_screenshot(str(screenshots / "histogram.png"))


def test_texts_are_shown(driver, url, metrics, screenshots):
    name, texts = sorted(metrics.texts.items())[0]
    step, text = texts[-1]
    shown = open_page(driver, url, "text", [name, f"Step {step}"])
    assert text.split("\n")[0].strip() in shown
    driver.save_screenshot(str(screenshots / "text.png"))


def test_hyper_parameters_are_shown(driver, url, screenshots):
    open_page(driver, url, "hyper-parameter", ["learning_rate", "loss/train"])
    driver.save_screenshot(str(screenshots / "hyper-parameter.png"))
