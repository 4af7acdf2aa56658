"""Packages import downward only, Paddle stays out of Paddle-free ones, and tests mirror the tree.

The rule of docs/architecture.md, read from the syntax tree, so that imports inside functions count.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "paddle_ernie"
ROWS = (
    ("utils",),
    ("config",),
    ("monitor", "ops"),
    ("parallel",),
    ("models",),
    ("elastic", "data", "convert"),
    ("train", "serve", "envs"),
    ("rl",),
    ("post", "eval"),
    ("dry_run", "launch", "bench"),
    ("tools",),
)
LEVEL = {name: level for level, row in enumerate(ROWS) for name in row}
PADDLE_FREE = frozenset({"config", "utils", "monitor", "data", "envs", "dry_run"})
PADDLE_FREE_MODULES = frozenset(
    {
        "models.cost",
        "models.plan",
        "models.model_dir",
        "serve.routes",
        "serve.client.client",
        "serve.client.types",
        "serve.client.wire",
    }
)
SOURCES = sorted([*(ROOT / PACKAGE).rglob("*.py"), *(ROOT / "tools").rglob("*.py")])

# Tests that follow no single module: whole packages, files of the project, whole runs.
WITHOUT_MODULE = frozenset(
    {
        "test_readme.py",
        "test_docs.py",
        "test_import_direction.py",
        "monitor/test_package.py",
        "ops/test_sanitizers.py",
        "ops/test_cuda.py",
        "ops/test_vec.py",
        "ops/test_gemm.py",
        "elastic/test_package.py",
        "serve/test_generated_requests.py",
        "serve/test_soak.py",
    }
)
WITHOUT_MIRROR = frozenset({"integration", "golden", "interop"})


def imports(
    tree: ast.Module, module: tuple[str, ...], is_package: bool
) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, wherever it stands; relative ones are resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = module[: len(module) - node.level + is_package]
                base = ".".join([*parent, *([base] if base else [])])
            # `from paddle_ernie import ops` names a package in its aliases.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def violations(source: str, module: tuple[str, ...], is_package: bool = False) -> list[str]:
    """What breaks the rule in a module such as ("paddle_ernie", "ops", "linear")."""
    inside = module[0] == PACKAGE
    if inside and len(module) == 1:
        own, level = "", -1  # the top package itself: imports nothing of ours
    else:
        own = module[1] if inside else module[0]
        if own not in LEVEL:
            return [f"{'.'.join(module)}: the package {own!r} has no row in ROWS"]
        level = LEVEL[own]
    found = []
    for line, name in imports(ast.parse(source), module, is_package):
        parts = name.split(".")
        at = f"{'.'.join(module)}:{line}: imports {name}"
        if parts[0] == "paddle" and is_paddle_free(module):
            found.append(f"{at}, but is Paddle-free")
        if parts[0] not in (PACKAGE, "tools"):
            continue
        target = (parts[1] if len(parts) > 1 else "") if parts[0] == PACKAGE else "tools"
        if target in ("__version__", own):
            continue
        if target not in LEVEL:
            found.append(f"{at}, which has no row in ROWS")
        elif LEVEL[target] >= level:
            found.append(f"{at}, which is not below {own or PACKAGE}")
    return found


def is_paddle_free(module: tuple[str, ...]) -> bool:
    return module[1:2] == () or module[1] in PADDLE_FREE


def module_of(path: Path) -> tuple[tuple[str, ...], bool]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return (parts[:-1] if is_package else parts), is_package


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_downward(path: Path) -> None:
    assert violations(path.read_text(), *module_of(path)) == []


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("from paddle_ernie.train.loop import TrainLoop", "paddle_ernie.models.model"),
        ("import paddle_ernie.launch", "paddle_ernie.config.loader"),
        ("from paddle_ernie import ops", "paddle_ernie.monitor.writer"),
        ("from paddle_ernie.data.types import Batch", "paddle_ernie.elastic.space"),
        ("def f():\n    from paddle_ernie.post import pipeline", "paddle_ernie.train.loop"),
        ("if True:\n    import paddle_ernie.config.base", "paddle_ernie.utils.files"),
        ("from ..train import loop", "paddle_ernie.models.model"),
        ("from ...train.loop import x", "paddle_ernie.models.sub.model"),
        ("import tools.train", "paddle_ernie.launch"),
        ("from paddle_ernie.launch import run_stage", "paddle_ernie.dry_run"),
        ("import paddle", "paddle_ernie.data.loader"),
        ("def f():\n    import paddle.nn as nn", "paddle_ernie.monitor.writer"),
        ("from paddle.nn import Layer", "paddle_ernie.config.base"),
        ("import paddle", "paddle_ernie.dry_run"),
        ("import paddle_ernie.utils.files", "paddle_ernie"),
        ("x = 1", "paddle_ernie.unheard_of.x"),
        ("import paddle_ernie.unheard_of", "paddle_ernie.launch"),
    ],
)
def test_a_planted_violation_is_found(source: str, module: str) -> None:
    assert len(violations(source, tuple(module.split(".")))) == 1


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("from paddle_ernie.ops import linear\nimport paddle", "paddle_ernie.models.model"),
        ("from paddle_ernie.models.plan import x", "paddle_ernie.models.model"),
        ("from paddle_ernie import __version__", "paddle_ernie.config.loader"),
        ("from . import moe\nfrom .moe import MoE", "paddle_ernie.models.model"),
        ("from ..ops.linear import linear", "paddle_ernie.models.model"),
        ("from paddle_ernie.launch import run_stage", "tools.train"),
        ("import paddleformers", "paddle_ernie.config.base"),
    ],
)
def test_what_is_allowed_passes(source: str, module: str) -> None:
    assert violations(source, tuple(module.split("."))) == []


def test_relative_imports_of_a_package_are_its_own() -> None:
    assert violations("from . import base", ("paddle_ernie", "config"), is_package=True) == []
    assert violations("from .. import launch", ("paddle_ernie", "config"), is_package=True) != []


def test_every_package_has_a_row() -> None:
    packages = {path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")}
    assert packages <= set(LEVEL)


def test_modules_that_dry_runs_use_do_not_import_paddle_when_they_are_imported() -> None:
    for name in PADDLE_FREE_MODULES:
        path = ROOT / PACKAGE / Path(*name.split(".")).with_suffix(".py")
        top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.stmt)]
        shallow = ast.Module([n for n in top if isinstance(n, ast.Import | ast.ImportFrom)], [])
        found = [n for _, n in imports(shallow, (PACKAGE, *name.split(".")), False)]
        assert not [n for n in found if n.split(".")[0] == "paddle"], name


def test_package_files_hold_only_a_docstring() -> None:
    for path in (ROOT / PACKAGE).glob("*/__init__.py"):
        body = ast.parse(path.read_text()).body
        assert all(isinstance(node, ast.Expr) for node in body), path


def test_every_test_file_has_its_module() -> None:
    missing = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        relative = path.relative_to(ROOT / "tests")
        if str(relative) in WITHOUT_MODULE or relative.parts[0] in WITHOUT_MIRROR:
            continue
        inside = ROOT if relative.parts[0] in ("deploy", "tools") else ROOT / PACKAGE
        module = inside / relative.parent / relative.name.removeprefix("test_")
        if not module.exists() and not module.with_suffix("").is_dir():
            missing.append(f"{relative} tests {module.relative_to(ROOT)}, which does not exist")
    assert missing == []


def test_the_list_of_exceptions_is_current() -> None:
    for name in WITHOUT_MODULE:
        assert (ROOT / "tests" / name).exists(), name
