"""The README's two commands are the ones that are tested, and what it links to exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()

FIRST_COMMAND = (
    "python3 -m venv .venv && .venv/bin/pip install -q -r requirements.txt && "
    ".venv/bin/python tools/train.py -c configs/quickstart.yaml"
)
SECOND_COMMAND = (
    "python3 -m venv .venv && .venv/bin/pip install -q -r tests/requirements.txt && "
    ".venv/bin/python -m pytest"
)


def test_readme_shows_both_commands() -> None:
    lines = README.splitlines()
    assert FIRST_COMMAND in lines
    assert SECOND_COMMAND in lines


def test_ci_calls_the_second_command() -> None:
    assert SECOND_COMMAND in (ROOT / ".ci" / "run").read_text().splitlines()


def test_local_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_test_requirements_extend_the_runtime_ones() -> None:
    runtime = _pins(ROOT / "requirements.txt")
    assert "paddlepaddle==3.1.0" in runtime
    assert runtime <= _pins(ROOT / "tests" / "requirements.txt")


def _pins(path: Path) -> set[str]:
    lines = path.read_text().splitlines()
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}
