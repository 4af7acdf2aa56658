"""The operators' cache: one compilation for many processes, keys, leftovers, errors one can act on.

A two-line library stands in for the operators.
"""

import ctypes
import fcntl
import io
import logging
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import paddle
import pytest

from paddle_ernie.ops import build as module
from paddle_ernie.ops.build import BUILDING, LIBRARY_FILE, build, build_id, key
from paddle_ernie.ops.compiler import BuildError, CannotBuildError, Compiler, find_compiler
from paddle_ernie.utils.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '#include "value.h"\nextern "C" int value() { return VALUE; }\n'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PADDLE_ERNIE_CACHE", str(folder))
    monkeypatch.delenv("PADDLE_ERNIE_OPS_FLAGS", raising=False)
    return folder / "operators"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Two files, one of them a header."""
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "value.cc").write_text(SOURCE)
    (folder / "value.h").write_text("#define VALUE 7\n")
    return folder


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture):
    """`said()`: what was logged, wherever other tests have sent the package's records."""
    caplog.set_level(logging.INFO, logger=module.logger.name)
    module.logger.addHandler(caplog.handler)
    yield lambda: "\n".join(record.getMessage() for record in caplog.records)
    module.logger.removeHandler(caplog.handler)


@pytest.fixture
def slow_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """g++ that takes a while; the file returned gets a line per file it compiles."""
    log, script = tmp_path / "compiled.log", tmp_path / "slow-g++"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *" -c "*) echo x >> {log}; sleep 1;; esac\nexec g++ "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return log


def value_of(path: Path) -> int:
    return ctypes.CDLL(str(path)).value()


def test_built_once_then_found(sources: Path, slow_compiler: Path, said) -> None:
    path = build(sources)
    assert value_of(path) == 7
    assert build(sources) == path
    assert slow_compiler.read_text() == "x\n"
    assert "once per machine" in said()
    assert re.search(r"operators compiled in \d+ s", said())


def test_force_compiles_again(sources: Path) -> None:
    path = build(sources)
    before = path.stat().st_ino
    assert build(sources, force=True) == path
    assert path.stat().st_ino != before


def test_a_changed_header_makes_another_library(sources: Path) -> None:
    first = build(sources)
    (sources / "value.h").write_text("#define VALUE 8\n")
    second = build(sources)
    assert second != first
    assert (value_of(first), value_of(second)) == (7, 8)


def test_flags_of_the_environment_reach_the_compiler(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources / "value.h").unlink()
    (sources / "value.cc").write_text(SOURCE.partition("\n")[2])
    monkeypatch.setenv("PADDLE_ERNIE_OPS_FLAGS", "-DVALUE=9 '-DUNUSED=a b'")
    assert value_of(build(sources)) == 9


def test_key_changes_with_everything_that_could_change_the_library(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcc = Compiler(("g++",), "g++ 12.2.0")
    keys = [
        key(sources, gcc, ()),
        key(sources, gcc, ("-g",)),
        key(sources, Compiler(("g++",), "g++ 13.1.0"), ()),
    ]
    (sources / "value.h").rename(sources / "other.h")
    keys.append(key(sources, gcc, ()))
    monkeypatch.setattr(paddle, "__version__", "3.3.1")
    keys.append(key(sources, gcc, ()))
    monkeypatch.setattr(sys.implementation, "cache_tag", "cpython-399")
    keys.append(key(sources, gcc, ()))
    assert len({each.folder for each in keys}) == len(keys)
    assert key(sources, Compiler(("/usr/bin/g++",), "g++ 12.2.0"), ()) == keys[-1]


def test_equal_code_has_an_equal_id_whatever_loads_it(
    sources: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ident() -> str:
        folder = key(sources, find_compiler(), ()).folder
        return build_id(cache / folder / LIBRARY_FILE)

    before = ident()
    monkeypatch.setattr(sys.implementation, "cache_tag", "cpython-399")
    assert ident() == before
    (sources / "value.h").write_text("#define VALUE 8\n")
    assert ident() != before


def test_broken_source(sources: Path, cache: Path) -> None:
    (sources / "value.cc").write_text("int f() {\n  return undeclared;\n}\n")
    with pytest.raises(BuildError) as raised:
        build(sources)
    message = str(raised.value)
    assert "value.cc:2:10: error: 'undeclared' was not declared" in message
    assert "PADDLE_ERNIE_OPS=off" in message
    assert not list(cache.rglob(LIBRARY_FILE)) + list(cache.rglob(BUILDING))
    (sources / "value.cc").write_text(SOURCE)
    assert value_of(build(sources)) == 7


def test_a_missing_symbol_is_a_readable_error(sources: Path) -> None:
    (sources / "value.cc").write_text("int absent();\nint value() { return absent(); }\n")
    with pytest.raises(BuildError, match=r"undefined reference to `absent\(\)'"):
        build(sources, flags=["-Wl,-z,defs"])


def test_two_processes_at_once_compile_once(sources: Path, slow_compiler: Path) -> None:
    program = (
        "import logging, sys; from pathlib import Path; from paddle_ernie.ops import build\n"
        "build.logger.addHandler(logging.StreamHandler(sys.stdout)); build.logger.setLevel(20)\n"
        "print(build.build(Path(sys.argv[1])))"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, str(sources)]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in "ab"]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs[0].splitlines()[-1] == outputs[1].splitlines()[-1]
    assert slow_compiler.read_text() == "x\n"


def test_who_waits_says_so(sources: Path, cache: Path, said) -> None:
    folder = cache / key(sources, find_compiler(), ()).folder
    cache.mkdir(parents=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built: list[Path] = []
        waiter = threading.Thread(target=lambda: built.append(build(sources)))
        waiter.start()
        deadline = time.monotonic() + 10
        while "waiting for it" not in said() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "another process compiles the operators" in said()
        assert not built
        fcntl.flock(lock, fcntl.LOCK_UN)
        waiter.join(timeout=60)
    assert value_of(built[0]) == 7


def test_leftovers_of_killed_builds_go_and_running_ones_stay(sources: Path, cache: Path) -> None:
    own = key(sources, find_compiler(), ()).folder
    for name in (own, "killed", "running"):
        (cache / name / BUILDING).mkdir(parents=True)
        (cache / name / BUILDING / "half.o").write_text("")
    with open(cache / "running.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build(sources)
    assert [path.parent.name for path in cache.glob(f"*/{BUILDING}")] == ["running"]


def test_without_a_compiler_a_library_from_elsewhere_is_good(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build(sources)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert build(sources) == path
    (sources / "value.h").write_text("#define VALUE 8\n")
    with pytest.raises(CannotBuildError, match=r"no-such-compiler does not run; install g\+\+"):
        build(sources)


def test_a_cache_that_cannot_be_written(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PADDLE_ERNIE_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"Not a directory.*PADDLE_ERNIE_CACHE"):
        build(sources)


def test_progress_redraws_one_line_on_a_terminal(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    build(sources)
    text = screen.getvalue()
    assert "\n" not in text
    assert "compiling operators, once per machine: 1 of 1 files" in text
    assert text.endswith("\r\x1b[K")  # cleared: the log line that follows begins at the margin


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PADDLE_ERNIE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/paddle_ernie"),
        ({}, f"{os.path.expanduser('~')}/.cache/paddle_ernie"),
    ],
)
def test_where_the_cache_lies(environment: dict[str, str], expected: str) -> None:
    assert str(module.cache_dir(environment)) == expected


def test_every_source_is_installed_with_the_package() -> None:
    package = ROOT / "paddle_ernie" / "ops"
    assert '"paddle_ernie.ops" = ["csrc/*/*"]' in (ROOT / "pyproject.toml").read_text()
    files = {path for path in (package / "csrc").rglob("*") if path.is_file()}
    assert files == {path for path in package.glob("csrc/*/*") if path.is_file()}
