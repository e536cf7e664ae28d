"""Our side: the phases of a training step, as the tasks of a workflow call them.

python -m tests.bench.ours FOLDER              all phases
python -m tests.bench.ours FOLDER ENGINE       sampling alone, by a `rollout.engine`
"""

import shutil
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import torch

from configs.run import RunConfig
from tasks.annotators.annotate import annotate
from tasks.data.arrow import read_table
from tasks.data.schemas import lengths
from tasks.policy.directory import weights_digest
from tasks.policy.files import PolicyFiles
from tasks.rewards.score import score
from tasks.sampling.rollout import rollout
from tasks.trainer.loop import train
from tests.bench.prepare import settings
from tests.bench.work import NUM_THREADS, Folder, Report, Step

LIBRARIES = ("torch", "transformers")


def main(root: str, engine: str = "") -> None:
    """Take the steps of the work and tell what they took."""
    torch.set_num_threads(NUM_THREADS)
    folder = Folder(root=Path(root))
    work = folder.read_work()
    prompts = read_table(folder.table)
    config = settings(work, folder, *([f"rollout.engine={engine}"] if engine else []))
    report = Report(side=engine or "ours", num_rows=work.num_rows)
    libraries = (*LIBRARIES, *([engine] if engine else []))
    report.versions = {name: import_module(name).__version__ for name in libraries}
    files = endless(folder)
    written = Path(tempfile.mkdtemp(prefix="ours-", dir=folder.root))
    for step in range(work.num_steps):
        rows = prompts.slice(step * work.prompts_per_step, work.prompts_per_step)
        if engine:
            report.steps.append(sample(config, step, rows, files))
        else:
            taken, files = one_step(config, step, rows, files, written)
            report.steps.append(taken)
    report.tell()


def endless(folder: Folder) -> PolicyFiles:
    """Return the policy that both engines sample to the last token."""
    state = folder.root / "no_state"
    state.mkdir(exist_ok=True)
    digest = weights_digest(folder.endless)
    return PolicyFiles(
        version=0, digest=digest, state_digest="", weights=folder.endless, trainer_state=state
    )


def sample(config: RunConfig, step: int, prompts: pa.Table, files: PolicyFiles) -> Step:
    """Sample the responses of a step."""
    started = time.perf_counter()
    sampled = rollout(config, step, prompts, files)
    seconds = time.perf_counter() - started
    return counted(sampled, generate_s=seconds, step_s=seconds)


def one_step(
    config: RunConfig, step: int, prompts: pa.Table, files: PolicyFiles, root: Path
) -> tuple[Step, PolicyFiles]:
    """Take a whole step, its new policy written and hashed as in a run; return that policy."""
    to = root / str(step) / "weights", root / str(step) / "trainer_state"
    for directory in to:
        directory.mkdir(parents=True)
    started = time.perf_counter()
    sampled = rollout(config, step, prompts, files)
    generated = time.perf_counter()
    scored = score(sampled, config.reward, max_tokens=config.rollout.max_tokens)
    trained = train(config, annotate(scored, config.rl), files, to)
    ended = time.perf_counter()
    if step:
        shutil.rmtree(root / str(step - 1))
    taken = counted(sampled, generate_s=generated - started, step_s=ended - started)
    return taken, trained.policy


def counted(sampled: pa.Table, *, generate_s: float, step_s: float) -> Step:
    """Return the step with the tokens of its table."""
    return Step(
        generate_s=generate_s,
        step_s=step_s,
        prompt_tokens=int(lengths(sampled["prompt_tokens"]).sum()),
        completion_tokens=int(lengths(sampled["response_tokens"]).sum()),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
