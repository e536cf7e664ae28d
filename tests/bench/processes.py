"""Measurements run in fresh processes, all with the same threads."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.bench.records import ROOT
from tests.bench.work import NUM_THREADS

TIMEOUT_S = 1200


def environment() -> dict[str, str]:
    """Return the environment of every process: the same threads, and nothing fetched."""
    fixed = {
        "OMP_NUM_THREADS": str(NUM_THREADS),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {**os.environ, **fixed}


def run(python: Path, module: str, *arguments: str) -> str:
    """Run a module from the root of the project and return the last line that it printed.

    Raises:
        RuntimeError: it failed or said nothing; with the end of what it said.
    """
    command = [str(python), "-m", module, *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        said = f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
        raise RuntimeError(f"{' '.join(command)} failed:\n{said}")
    return (done.stdout.splitlines() or [""])[-1]


def told(python: Path, module: str, *arguments: str) -> dict[str, Any]:
    """Return the JSON object that a module prints last."""
    return json.loads(run(python, module, *arguments))
