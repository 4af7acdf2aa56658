"""The environment of transformers, for tests that write a job and read its results."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.environments import TRANSFORMERS


@pytest.fixture(scope="session")
def transformers_side() -> Callable[[str, Path], None]:
    """transformers_side(command, job): runs the script, which must succeed."""
    TRANSFORMERS.python()
    return lambda command, job: TRANSFORMERS.run("transformers_side.py", command, job)
