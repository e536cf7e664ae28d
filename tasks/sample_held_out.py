"""Flyte task: answer the held-out prompts."""

import hashlib
from pathlib import Path

from flytekit import Cache, task

from configs.evaluation import Evaluation
from configs.job import Job
from configs.model import Model
from configs.rollout import Rollout
from configs.run import RunConfig
from images.roles import CONSTRAINTS, TRAIN
from tasks.data.arrow import Table
from tasks.handle import Policy
from tasks.policy.digests import file_digest

HERE = Path(__file__).parent
CODE = (
    *sorted((HERE / "sampling").glob("*.py")),
    *(HERE / "policy" / name for name in ("declared.py", "directory.py", "tokenizing.py")),
    CONSTRAINTS,
)
"""What responses depend on beside the task's inputs: our code, and the versions of libraries."""

CODE_VERSION = hashlib.sha256("".join(map(file_digest, CODE)).encode()).hexdigest()[:16]


# A policy is uploaded to a new place whenever it is opened, so its files stand for it.
@task(container_image=TRAIN, cache=Cache(version=CODE_VERSION, ignored_inputs=("policy",)))
def sample_held_out(
    model: Model,
    rollout: Rollout,
    evaluation: Evaluation,
    seed: int,
    policy: Policy,
    files_digest: str,
    held_out: Table,
) -> Table:
    """Sample responses to held-out prompts; a function of these sections, which is why it keeps."""
    from tasks.evaluation.held_out import sample_held_out as sample

    config = RunConfig(
        algorithm="evaluation",
        job=Job(name="evaluation", seed=seed),
        model=model,
        rollout=rollout,
        evaluation=evaluation,
    )
    return sample(config, policy.local(), held_out)
