"""What a step of a run costs beside its phases: Flyte, tables, tracking, checkpoints."""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.bench.records import ROOT, Record, check

TIMEOUT_S = 900
BODIES = ("rollout", "score", "annotate", "train", "evaluate")

TINY = {
    "model.embedded.hidden_size": 16,
    "model.embedded.num_layers": 1,
    "model.embedded.num_heads": 2,
    "model.embedded.intermediate_size": 16,
    "model.embedded.warm_start_max_steps": 0,
    "evaluation.every": 0,
    "evaluation.num_prompts": 8,
    "rollout.prompts_per_step": 16,
    "rl.max_steps": 20,
}
"""Overrides of a run whose phases take next to nothing."""

SCALES: dict[str, tuple[int, ...]] = {
    "rl.max_steps": (10, 40, 160),
    "rollout.max_tokens": (4, 16, 64),
    "rollout.group_size": (4, 16, 64),
}
"""Settings that the cost of a step should not depend on, and the values that are tried."""

NUM_IMPORTS = 3


def whole_run(*, quick: bool) -> list[Record]:
    """Run `grpo_arithmetic` and say where its time went."""
    words = {"rl.max_steps": 3, "rollout.prompts_per_step": 16} if quick else {}
    return [check(name, value) for name, value in stages(run(words)).items()]


def run(words: dict[str, object]) -> dict[str, object]:
    """Run `grpo_arithmetic` with overrides, in a directory of its own; return its summary."""
    with TemporaryDirectory() as folder:
        overrides = " ".join(f"{k}={v}" for k, v in {**words, "job.output_root": folder}.items())
        program = str(Path(sys.executable).with_name("pyflyte"))
        command = [program, "run", "workflows/grpo.py", "grpo", "--overrides", overrides]
        subprocess.run(command, cwd=ROOT, check=True, timeout=TIMEOUT_S, stdout=sys.stderr)
        return json.loads(Path(folder, "grpo_arithmetic", "summary.json").read_text())


def stages(summary: dict[str, object]) -> dict[str, float]:
    """Return seconds per step by stage, and the share of the steps that is spent in none.

    Setup and bootstrap happen once and are no part of a step.
    """
    seconds, steps = summary["seconds"], summary["steps"]
    per_step = {f"{stage} s/step": seconds[stage] / steps for stage in BODIES}
    orchestration = seconds["orchestration"]
    loop = orchestration + sum(seconds[stage] for stage in BODIES)
    return {
        **per_step,
        "orchestration s/step": orchestration / steps,
        "orchestration share of the steps": orchestration / loop,
        "orchestration share of the run": orchestration / seconds["total"],
        "total s": seconds["total"],
        "accuracy gained": summary["last_accuracy"] - summary["first_accuracy"],
    }


def scaling(*, quick: bool) -> list[Record]:
    """Return what a step costs beside its phases, for a number of steps, tokens and samples."""
    found = []
    for setting, values in SCALES.items():
        for value in values[:1] if quick else values:
            steps = {"rl.max_steps": 3} if quick else {}
            summary = run({**TINY, **steps, setting: value})
            cost = summary["seconds"]["orchestration"] / summary["steps"]
            found.append(check(f"orchestration s/step, {setting}={value}", cost))
    return found


def imports(*, quick: bool) -> list[Record]:
    """Return how long importing the workflow takes in a fresh process, less Python's own start."""
    times = range(1 if quick else NUM_IMPORTS)
    cost = median(_seconds("import workflows.grpo") - _seconds("pass") for _ in times)
    return [check("import workflows.grpo s", cost)]


def _seconds(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=TIMEOUT_S)
    return time.perf_counter() - started
