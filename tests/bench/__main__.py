"""`make bench`: what a run of `grpo_arithmetic` costs, a step on two ranks, and a pass's memory.

Prints tables and writes `build/bench.json`: a list of `{"check": name, "value": number}`, and of
`{"work", "phase", "ours", "peer", "ratio"}` where something is compared.
"""

import json
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench import memory
from tests.bench.ranks import seconds_per_step

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "build" / "bench.json"
TIMEOUT_S = 900
BODIES = ("rollout", "score", "annotate", "train", "evaluate")


def main() -> None:
    """Measure, print and write."""
    with TemporaryDirectory() as folder:
        summary = train(Path(folder))
    checks = {**stages(summary), **imports(), **seconds_per_step()}
    for name, value in checks.items():
        print(f"{name:36s} {value:10.4f}")
    print(f"{platform.machine()}, torch {version('torch')}, flytekit {version('flytekit')}")
    RESULT.parent.mkdir(exist_ok=True)
    compared = memory.measure()
    for row in compared:
        print(f"{row['phase']:56s} {row['ours']:6.2f} {row['peer']:6.2f} GiB {row['ratio']:6.2f}")
    rows = [*({"check": name, "value": value} for name, value in checks.items()), *compared]
    RESULT.write_text(json.dumps(rows, indent=2) + "\n")


def train(folder: Path) -> dict[str, object]:
    """Run `grpo_arithmetic` in a directory of its own and return its summary."""
    command = ["pyflyte", "run", "workflows/grpo.py", "grpo"]
    overrides = ["--overrides", f"job.output_root={folder}"]
    program = str(Path(sys.executable).with_name(command[0]))
    subprocess.run([program, *command[1:], *overrides], cwd=ROOT, check=True, timeout=TIMEOUT_S)
    return json.loads((folder / "grpo_arithmetic" / "summary.json").read_text())


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


def imports() -> dict[str, float]:
    """Return how long importing the workflow takes in a fresh process, less Python's own start."""
    return {"import workflows.grpo s": _seconds("import workflows.grpo") - _seconds("pass")}


def _seconds(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=TIMEOUT_S)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
