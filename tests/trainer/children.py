"""What the tests of the trainer read, computed once in a child process.

An `Accelerator` configures its whole process, so none is made in the process of the tests.
"""

import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 400


def computed(part: str) -> Any:
    """Return what one part of `main` computed, or fail with what the child printed."""
    results, errors = _everything()
    assert part in results, errors
    return results[part]


@cache
def _everything() -> tuple[dict[str, Any], str]:
    with TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "tests.trainer.children", directory]
        try:
            child = subprocess.run(
                command, cwd=ROOT, timeout=TIMEOUT_S, capture_output=True, text=True, check=False
            )
            errors = child.stderr[-4000:]
        except subprocess.TimeoutExpired as error:
            errors = str(error)
        written = Path(directory).glob("*.pt")
        return {path.stem: torch.load(path, weights_only=False) for path in written}, errors


def main(directory: str) -> None:
    """Compute one part after the other, so that a failure takes only the later ones with it."""
    from tests.trainer import (
        behaviour_runs,
        loop_runs,
        lora_runs,
        proof_runs,
        rank_runs,
        spread_runs,
        step_runs,
    )

    parts = {
        # Ranks are forked, and must be before this process makes an Accelerator of its own.
        "ranks": rank_runs.compute,
        "steps": step_runs.compute,
        "proofs": proof_runs.compute,
        "loop": loop_runs.compute,
        "lora": lora_runs.compute,
        "spread": spread_runs.compute,
        "behaviour": behaviour_runs.compute,
    }
    for name, compute in parts.items():
        torch.save(compute(), Path(directory, f"{name}.pt"))


if __name__ == "__main__":
    main(sys.argv[1])
