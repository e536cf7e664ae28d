"""Runs of the GRPO workflow on a model so small that a step takes a few hundredths of a second."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tasks.data.arrow import read_table

ROOT = Path(__file__).parents[2]
REWARDS = Path(__file__).parent
TIMEOUT_S = 300
NOTHING: Mapping[str, str] = MappingProxyType({})

TINY = {
    "job.name": "tiny",
    "model.embedded.hidden_size": 16,
    "model.embedded.num_layers": 1,
    "model.embedded.num_heads": 2,
    "model.embedded.intermediate_size": 16,
    "model.embedded.warm_start_max_steps": 0,
    "evaluation.num_prompts": 8,
    "evaluation.every": 1,
    "rollout.prompts_per_step": 4,
    "rollout.group_size": 4,
    "reward.provider": "graded:variety",
    "rl.mini_batches": 2,
    "rl.max_steps": 3,
    "rl.save_every": 1,
}
"""Overrides of `grpo_arithmetic`; the reward has a spread, so that every update moves weights."""


@dataclass(frozen=True)
class Finished:
    """What a run leaves: its exit status, what it printed and its directory."""

    code: int
    output: str
    directory: Path

    @property
    def summary(self) -> dict[str, object]:
        assert self.code == 0, self.output[-4000:]
        return json.loads((self.directory / "summary.json").read_text())

    @property
    def run_id(self) -> str:
        return str(self.summary["mlflow_run_id"])

    @property
    def weights(self) -> str:
        return str(self.summary["weights_digest"])

    @property
    def tables(self) -> dict[str, bytes]:
        folder = self.directory / "tables"
        return {path.name: path.read_bytes() for path in sorted(folder.glob("*.arrow"))}

    @property
    def checkpoints(self) -> list[int]:
        folder = self.directory / "checkpoints"
        return [int(path.name[-6:]) for path in sorted(folder.glob("step-*"))]


def table_differences(first: Finished, second: Finished) -> list[str]:
    """Return the tables of two runs that are not the same bytes, with the columns that differ."""
    names = first.tables.keys() | second.tables.keys()
    return [
        f"{name}: {_columns(first.directory / 'tables' / name, second.directory / 'tables' / name)}"
        for name in sorted(names)
        if first.tables.get(name) != second.tables.get(name)
    ]


def _columns(first: Path, second: Path) -> str:
    if not (first.is_file() and second.is_file()):
        return f"only {first if first.is_file() else second} exists"
    a, b = read_table(first), read_table(second)
    columns = [name for name in a.column_names if not a.column(name).equals(b.column(name))]
    return f"columns {columns}" if columns else "equal columns in different bytes"


def overrides(root: Path, **changed: object) -> str:
    """Return the overrides of a tiny run; `__` in a keyword stands for a dot."""
    named = {key.replace("__", "."): value for key, value in changed.items()}
    words = {**TINY, "job.output_root": root, **named}
    return " ".join(f"{key}={value}" for key, value in words.items())


def environment(scratch: Path, *paths: Path) -> dict[str, str]:
    scratch.mkdir(parents=True, exist_ok=True)
    return {
        "TMPDIR": str(scratch),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (REWARDS, *paths))),
    }


def grpo(root: Path, *more: str, **changed: object) -> list[str]:
    """Return the command line of a tiny run."""
    flow = str(ROOT / "workflows" / "grpo.py")
    return ["pyflyte", "run", flow, "grpo", "--overrides", overrides(root, **changed), *more]


def cold(argv: list[str], *, cwd: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line as a user does, in a process of its own."""
    return subprocess.run(
        [str(Path(sys.executable).with_name(argv[0])), *argv[1:]],
        cwd=cwd,
        env={**os.environ, **environment(scratch)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


class Warm:
    """Starts command lines of flytekit in forks of a process that has imported everything."""

    def __init__(self, process: subprocess.Popen[str], scratch: Path) -> None:
        self.process = process
        self.scratch = scratch

    def start(
        self, *commands: list[str], log: Path, cwd: Path = ROOT, env: Mapping[str, str] = NOTHING
    ) -> int:
        log.parent.mkdir(parents=True, exist_ok=True)
        env = {**environment(self.scratch), **env}
        return self._ask({"commands": commands, "cwd": str(cwd), "env": env, "log": str(log)})

    def wait(self, pid: int) -> int:
        return self._ask({"wait": pid, "timeout_s": TIMEOUT_S})

    def run(
        self, *commands: list[str], log: Path, cwd: Path = ROOT, env: Mapping[str, str] = NOTHING
    ) -> tuple[int, str]:
        code = self.wait(self.start(*commands, log=log, cwd=cwd, env=env))
        return code, log.read_text()

    def execute(self, command: list[str], envs: Sequence[Mapping[str, str]], log: Path) -> None:
        """Run a command line once for each environment, at the same time."""
        for pid in [self.start(command, log=log, env=env) for env in envs]:
            self.wait(pid)

    def command(self, root: Path, *more: str, **changed: object) -> list[str]:
        """Return the command line of a tiny run that is recorded in the shared store."""
        return grpo(root, *more, **{"tracking__uri": self.store, **changed})

    @property
    def store(self) -> str:
        """The tracking database of all these runs: to make one takes longer than to run."""
        return f"sqlite:///{self.scratch / 'mlflow.db'}"

    def grpo(self, root: Path, *more: str, **changed: object) -> Finished:
        """Run the workflow below `root`, whose log grows with every run."""
        code, output = self.run(self.command(root, *more, **changed), log=root / "log")
        return Finished(code, output, root / str(changed.get("job__name", TINY["job.name"])))

    def _ask(self, request: dict[str, object]) -> int:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def warm(scratch: Path, **env: str) -> Iterator[Warm]:
    """Keep the process from which runs are forked, with additions to its environment."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.workflows.warm"],
        cwd=ROOT,
        env={**os.environ, **environment(scratch, ROOT), **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Warm(process, scratch)
    finally:
        process.stdin.close()  # its loop ends with its input
        process.wait(timeout=TIMEOUT_S)
