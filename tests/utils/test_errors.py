"""Exit codes are what the shell and schedulers are promised."""

import pytest

from paddle_ernie.utils import errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.PaddleErnieError, 1),
        (errors.InputError, 2),
        (errors.ConfigError, 2),
        (errors.DataError, 2),
        (errors.CheckpointError, 1),
        (errors.TrainingError, 1),
        (errors.Interrupted, 130),
    ],
)
def test_exit_codes(error: type[errors.PaddleErnieError], code: int) -> None:
    assert error("text").exit_code == code


def test_every_error_is_listed_above() -> None:
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.PaddleErnieError)
    ]
    assert len(classes) == 7
