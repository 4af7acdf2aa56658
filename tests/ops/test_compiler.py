"""Which compiler is taken, and what is said of one that will not do."""

from pathlib import Path

import paddle
import pytest

from paddle_ernie.ops.compiler import (
    BuildError,
    CannotBuildError,
    compile_flags,
    compile_library,
    find_compiler,
    link_flags,
)


def fake_compiler(folder: Path, macros: str, version: str = "fake 1.0") -> dict[str, str]:
    script = folder / "c++"
    script.write_text(
        f'#!/bin/sh\ncase "$1" in --version) echo "{version}";; *) echo "{macros}";; esac\n'
    )
    script.chmod(0o755)
    return {"CXX": str(script)}


def test_gpp_is_the_default() -> None:
    compiler = find_compiler({})
    assert compiler.command == ("g++",)
    assert "GCC" in compiler.version or "g++" in compiler.version


def test_cxx_may_hold_a_launcher() -> None:
    assert find_compiler({"CXX": "env g++"}).command == ("env", "g++")


@pytest.mark.parametrize(
    ("macros", "version"),
    [
        ("#define __GNUC__ 8", "g++ 8.5.0"),
        ("#define __GNUC__ 12\n#define __clang__ 1", "clang version 15.0"),
        ("", "something else"),
    ],
)
def test_a_compiler_that_will_not_do(tmp_path: Path, macros: str, version: str) -> None:
    with pytest.raises(CannotBuildError) as raised:
        find_compiler(fake_compiler(tmp_path, macros, version))
    assert version in str(raised.value)
    assert "expected GCC 9 or newer" in str(raised.value)
    assert "apt-get install g++" in str(raised.value)


@pytest.mark.parametrize("command", ["no-such-compiler", "false"])
def test_no_compiler(command: str) -> None:
    with pytest.raises(CannotBuildError, match=rf"{command} does not run; install g\+\+"):
        find_compiler({"CXX": command})


def test_no_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paddle.sysconfig, "get_include", lambda: str(tmp_path))
    with pytest.raises(CannotBuildError, match=r"headers are missing: no .*extension\.h"):
        find_compiler({})


def test_flags_are_portable_and_do_not_fuse() -> None:
    flags = compile_flags()
    assert not [flag for flag in flags if flag.startswith("-march")]
    assert {"-ffp-contract=off", "-fopenmp"} <= set(flags)
    assert "-ffast-math" not in flags


def test_one_openmp_library() -> None:
    openmp = {"-l:libiomp5.so", "-lgomp", "-fopenmp"} & set(link_flags())
    has_intel = (Path(paddle.sysconfig.get_lib()) / "libiomp5.so").is_file()
    assert openmp == {"-l:libiomp5.so" if has_intel else "-lgomp"}


def test_the_first_fault_ends_the_others(tmp_path: Path) -> None:
    """Files that had not started when one failed are not compiled."""
    sources = [tmp_path / f"f{i:02}.cc" for i in range(40)]
    for source in sources:
        source.write_text("int x;\n")
    sources[0].write_text("#error stop here\n" + "//" * 1000)  # the largest is the first
    with pytest.raises(BuildError, match="stop here"):
        compile_library(find_compiler({}), sources, tmp_path / "out.so")
    assert len(list(tmp_path.glob("*.o"))) < len(sources) // 2
