"""What the tests of the trainer read, computed once in a child process.

An `Accelerator` configures its whole process, so none is made in the process of the tests.
"""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240


def computed(part: str) -> Any:
    """Return what one part of `main` computed, or raise what it raised."""
    result = _everything()[part]
    if isinstance(result, Exception):
        raise result
    return result


@cache
def _everything() -> dict[str, Any]:
    with TemporaryDirectory() as directory:
        written = Path(directory, "results.pt")
        command = [sys.executable, "-m", "tests.trainer.children", str(written)]
        child = subprocess.run(
            command, cwd=ROOT, timeout=TIMEOUT_S, capture_output=True, text=True, check=False
        )
        assert child.returncode == 0, child.stderr[-4000:]
        return torch.load(written, weights_only=False)


def attempt(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except Exception as error:
        return RuntimeError(f"{type(error).__name__}: {error}").with_traceback(None)


def main(written: str) -> None:
    # Ranks are forked, and must be before this process makes an Accelerator of its own.
    from tests.trainer import loop_runs, proof_runs, rank_runs, step_runs

    parts = {
        "ranks": rank_runs.compute,
        "steps": step_runs.compute,
        "proofs": proof_runs.compute,
        "loop": loop_runs.compute,
    }
    torch.save({name: attempt(compute) for name, compute in parts.items()}, written)


if __name__ == "__main__":
    main(sys.argv[1])
