"""What the tests of the trainer read, computed in child processes.

An `Accelerator` configures its whole process, so none is made in the process of the tests.
"""

import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tasks.trainer.rank import named

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 200


@cache
def computed(part: str) -> Any:
    """Return what `compute` of `tests.trainer.<part>_runs` gives, or fail with what it printed."""
    with TemporaryDirectory() as directory:
        path = Path(directory, "computed.pt")
        child = subprocess.run(
            [sys.executable, "-m", "tests.trainer.children", part, str(path)],
            cwd=ROOT,
            timeout=TIMEOUT_S,
            capture_output=True,
            text=True,
            check=False,
        )
        assert child.returncode == 0, child.stderr[-4000:]
        return torch.load(path, weights_only=False)


if __name__ == "__main__":
    torch.save(named(f"tests.trainer.{sys.argv[1]}_runs:compute")(), sys.argv[2])
