"""`make bench-long`: what grows with the steps of a run.

Prints, per step, how memory, open files and temporary files grow after the first steps, and how
long the first and the last steps take; `python -m tests.bench.long 1000` takes as many steps.
"""

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tests.workflows.runs import ROOT, environment, overrides

NUM_STEPS = 300
WINDOW = 50
SECONDS_PER_STEP = 5
LINE = re.compile(r"step +(\d+)/")
TRIVIAL = {
    "evaluation__every": 0,
    "rl__save_every": 25,
    "rollout__prompts_per_step": 2,
    "rollout__group_size": 2,
    "tracking__keep_tables": "false",
}


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a process holds when it tells of a step."""

    at_s: float
    memory_mib: float
    open_files: int
    temporary_files: int
    temporary_mib: float
    run_mib: float


def main(num_steps: int) -> None:
    """Take the steps, print how much of everything they add."""
    with TemporaryDirectory() as folder:
        seen = watch(Path(folder), num_steps)
    late = seen[num_steps // 5 :]
    for name in ("memory_mib", "open_files", "temporary_files", "temporary_mib", "run_mib"):
        values = np.array([getattr(step, name) for step in late], dtype=float)
        slope = np.polyfit(np.arange(len(values)), values, 1)[0]
        print(f"{name:16s} {values[0]:10.2f} -> {values[-1]:10.2f}  {slope:+9.5f} per step")
    times = np.diff([step.at_s for step in seen])
    window = min(WINDOW, len(times) // 2)
    first, last = times[1 : window + 1].mean(), times[-window:].mean()
    print(f"seconds per step: first {window} {first:.4f}, last {window} {last:.4f}")


def watch(folder: Path, num_steps: int) -> list[Seen]:
    """Run a trivial recipe in a process of its own and look at it at every step's line."""
    scratch = folder / "scratch"
    words = overrides(folder, rl__max_steps=num_steps, **TRIVIAL)
    program = str(Path(sys.executable).with_name("pyflyte"))
    command = [program, "run", "workflows/grpo.py", "grpo", "--overrides", words]
    env = {**os.environ, **environment(scratch), "PYTHONUNBUFFERED": "1"}
    seen, started = [], time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as run:
        for line in run.stdout:
            if LINE.match(line):
                seen.append(look(run.pid, scratch, folder, started))
            if time.monotonic() - started > 60 + num_steps * SECONDS_PER_STEP:
                run.kill()
    assert run.returncode == 0, f"the run ended with {run.returncode}"
    return seen


def look(pid: int, scratch: Path, folder: Path, started: float) -> Seen:
    """Count what a process has; files that vanish meanwhile count as nothing."""
    status = Path(f"/proc/{pid}/status").read_text()
    temporary = below(scratch)
    own = [path for path in below(folder) if not path.is_relative_to(scratch)]
    return Seen(
        at_s=time.monotonic() - started,
        memory_mib=int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 2**10,
        open_files=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        temporary_files=len(temporary),
        temporary_mib=mebibytes(temporary),
        run_mib=mebibytes(own),
    )


def below(folder: Path) -> list[Path]:
    """Return what lies below a folder, passing over what vanishes meanwhile."""
    found = os.walk(folder)
    return [Path(at, name) for at, folders, files in found for name in (*folders, *files)]


def mebibytes(paths: list[Path]) -> float:
    """Return the size of files together."""
    return sum(size(path) for path in paths) / 2**20


def size(path: Path) -> int:
    """Return the size of a file that may be gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else NUM_STEPS)
