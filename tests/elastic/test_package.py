"""Sampling, planning and searching work where Paddle is not loaded: in `--dry-run`."""

import subprocess
import sys

import pytest

PADDLE_FREE = ("ranking", "subnet", "space", "supernet", "standalone", "search", "work")


@pytest.mark.parametrize("module", PADDLE_FREE)
def test_importing_it_imports_no_paddle(module):
    code = f"import sys, paddle_ernie.elastic.{module}; sys.exit('paddle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
