"""The C++ compiler: which one, with which flags, and every file at once. Called by `build`.

    *.cc --g++ -c, one process per core--> *.o --g++ -shared--> library

Paddle's include folders, macros and libraries come from `paddle.utils.cpp_extension`. The compiler
runs from here, not through setuptools, so that a fault ends in the compiler's own first lines.
"""

import os
import platform
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import paddle
from paddle.utils.cpp_extension import CppExtension

from paddle_ernie.utils.errors import PaddleErnieError
from paddle_ernie.utils.threads import available_cores

OLDEST_GCC = 9  # the first with __builtin_convertvector, which the kernels use
# Contraction off: `a * b + c` rounds twice on every machine, unless the source says fma.
CXX_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fopenmp", "-ffp-contract=off", "-fno-math-errno")
# Paddle 3 is built with the C++11 names of std::string and std::list.
ABI_FLAGS = ("-D_GLIBCXX_USE_CXX11_ABI=1",)
TIMEOUT_SECONDS = 1800  # one file takes seconds; an hour means a machine that swaps
LINES_SHOWN = 12
REDRAW_SECONDS = 0.5
INSTALL_HINT = (
    "install g++ (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; "
    "conda: conda install gxx)"
)

Advance = Callable[[int, int], None]
"""Called now and then with the files done and the files in all."""


class CannotBuildError(PaddleErnieError):
    """This machine has no compiler for the operators; their plain bodies run instead."""


class BuildError(PaddleErnieError):
    """The compiler is there and refuses the sources."""


@dataclass(frozen=True)
class Compiler:
    """A g++ that can compile the operators."""

    command: tuple[str, ...]
    version: str
    """The first line of `--version`."""


def find_compiler(environment: Mapping[str, str] = os.environ) -> Compiler:
    """`CXX`, else g++; CannotBuildError says what is missing and what to install."""
    command = tuple(shlex.split(environment.get("CXX", "")) or ("g++",))
    shown = shlex.join(command)
    try:
        version = _output([*command, "--version"]).splitlines()[0]
        macros = _output([*command, "-dM", "-E", "-x", "c++", os.devnull])
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        raise CannotBuildError(f"no C++ compiler: {shown} does not run; {INSTALL_HINT}") from error
    gcc = re.search(r"#define __GNUC__ (\d+)", macros)
    if "__clang__" in macros or gcc is None or int(gcc[1]) < OLDEST_GCC:
        raise CannotBuildError(
            f"the C++ compiler {shown} is {version}; expected GCC {OLDEST_GCC} or newer: "
            f"{INSTALL_HINT}, or name one in CXX"
        )
    header = Path(paddle.sysconfig.get_include()) / "paddle" / "extension.h"
    if not header.is_file():
        raise CannotBuildError(f"Paddle's headers are missing: no {header}; install it anew")
    return Compiler(command, version)


def compile_flags(extra: Sequence[str] = ()) -> list[str]:
    """Every flag of a translation unit but its name."""
    extension = CppExtension(name="operators", sources=[])
    folders = [f"-I{folder}" for folder in extension.include_dirs]
    return [*CXX_FLAGS, *ABI_FLAGS, *extension.extra_compile_args, *folders, *extra]


def link_flags(extra: Sequence[str] = ()) -> list[str]:
    """Flags after the objects, OpenMP's library among them.

    Paddle's MKL brings Intel's OpenMP library, which also has GCC's entry points. The kernels share
    it, so that one pool of threads serves both. With GCC's own library beside it, the waiting
    threads of one take the cores from the other: a matrix product and then a loop took 270 us
    instead of 130 on 2 cores, at times 3 ms. Where Paddle comes without it, GCC's is used.
    """
    extension = CppExtension(name="operators", sources=[])
    folders = [f"-L{folder}" for folder in extension.library_dirs]
    folders += [f"-Wl,-rpath,{folder}" for folder in extension.runtime_library_dirs]
    has_intel = any((Path(folder) / "libiomp5.so").is_file() for folder in extension.library_dirs)
    openmp = "-l:libiomp5.so" if has_intel else "-lgomp"
    return ["-shared", *folders, *extension.extra_link_args, openmp, *extra]


def describe(compiler: Compiler, extra: Sequence[str]) -> str:
    """What decides the library's code besides its sources; part of its name in the cache."""
    flags = [flag for flag in (*compile_flags(extra), *link_flags()) if not _is_folder(flag)]
    return f"{compiler.version} {platform.machine()} {shlex.join(flags)}"


def compile_library(
    compiler: Compiler,
    sources: Sequence[Path],
    target: Path,
    extra: Sequence[str] = (),
    advance: Advance = lambda done, total: None,
) -> None:
    """Compile `sources` to the shared library `target`, objects beside it."""
    command = [*compiler.command, *compile_flags(extra)]
    objects = [target.parent / f"{source.stem}.o" for source in sources]
    stop = threading.Event()

    def compile_one(source: Path, product: Path) -> None:
        if not stop.is_set():
            _run([*command, "-c", str(source), "-o", str(product)], source.name)

    # The largest first: the last file to start should not be the longest.
    order = sorted(zip(sources, objects, strict=True), key=lambda pair: -_weight(pair[0]))
    with ThreadPoolExecutor(available_cores()) as pool:
        tasks = {pool.submit(compile_one, *pair) for pair in order}
        try:
            waiting = tasks
            while waiting:
                done, waiting = wait(waiting, REDRAW_SECONDS, FIRST_EXCEPTION)
                for task in done:
                    task.result()
                advance(len(tasks) - len(waiting), len(tasks))
        finally:
            stop.set()
    _run(
        [*compiler.command, *map(str, objects), *link_flags(extra), "-o", str(target)],
        f"linking {target.name}",
    )


def _weight(source: Path) -> float:
    """Roughly how long a file compiles: Paddle's headers cost more than any kernel."""
    text = source.read_text()
    return float("inf") if "bindings.h" in text else len(text)


def _is_folder(flag: str) -> bool:
    return flag.startswith(("-I", "-L", "-Wl,-rpath"))


def _output(command: Sequence[str]) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60,
        env={**os.environ, "LC_ALL": "C"},
    ).stdout  # fmt: skip


def _run(command: Sequence[str], what: str) -> None:
    """Run the compiler; BuildError shows its first errors, of a language one can search for."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment,
            timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{what}: the compiler took over {TIMEOUT_SECONDS} s") from error
    if done.returncode == 0:
        return
    log = (done.stderr + done.stdout).splitlines()
    first = next((i for i, line in enumerate(log) if "error" in line or "undefined" in line), 0)
    lines = "\n".join(f"  {line[:160]}" for line in log[first : first + LINES_SHOWN])
    raise BuildError(
        f"{what}: {command[0]} ended with {done.returncode}\n{lines}\n"
        "If it was killed, memory ran out: free some and try again. Else update g++ or name "
        "another one in CXX. PADDLE_ERNIE_OPS=off runs without the compiled operators, several "
        "times slower"
    )
