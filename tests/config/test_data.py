"""Sources need a path or none, and weights on all or none."""

from typing import Any

import pytest
from pydantic import ValidationError

from paddle_ernie.config.data import DataConfig


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ([{"format": "text"}], "path is needed"),
        ([{"format": "python_stdlib", "path": "x"}], "takes no path"),
        ([{"path": "a", "weight": 1}, {"path": "b"}], "either all sources have a weight or none"),
        ([{"path": "a", "weight": 0}], "greater than 0"),
        ([], "at least 1"),
    ],
)
def test_refused(sources: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        DataConfig(sources=sources)


def test_weights_on_all_or_none() -> None:
    assert DataConfig(sources=[{"path": "a", "weight": 2}, {"path": "b", "weight": 1}])
    assert DataConfig(sources=[{"path": "a"}, {"format": "python_stdlib"}])
