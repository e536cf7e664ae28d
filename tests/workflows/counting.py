"""A builder that writes down, at every step, what the process holds; found on `PYTHONPATH`."""

import json
import os
import tempfile
from pathlib import Path

from configs.rl import Rl
from objectives.build import ModelContext
from objectives.grpo import build_objective as build_grpo
from objectives.objective import Objective


def build_objective(
    rl: Rl, model_context: ModelContext, *, log: str, staleness: int = 0
) -> Objective:
    entry = {"files": os.listdir("/proc/self/fd"), "entries": sorted(_entries())}
    with Path(log).open("a") as file:
        file.write(json.dumps({name: len(values) for name, values in entry.items()}) + "\n")
    return build_grpo(rl, model_context, staleness=staleness)


def _entries() -> list[str]:
    return [str(path) for path in Path(tempfile.gettempdir()).rglob("*")]
