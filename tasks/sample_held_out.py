"""Flyte tasks: answer the held-out prompts, in the image that has the engine."""

import hashlib
from pathlib import Path

from flytekit import Cache, task

from configs.evaluation import Evaluation
from configs.job import Job
from configs.model import Model
from configs.rollout import Rollout
from configs.run import RunConfig
from images.roles import CONSTRAINTS, ROLLOUT, TRAIN, VLLM_CONSTRAINTS
from tasks.data.arrow import Table
from tasks.handle import Policy
from tasks.policy.digests import file_digest

HERE = Path(__file__).parent
CODE = (
    *sorted((HERE / "sampling").glob("*.py")),
    *(HERE / "policy" / name for name in ("declared.py", "directory.py", "tokenizing.py")),
    HERE.parent / "images" / "roles.py",
    CONSTRAINTS,
    VLLM_CONSTRAINTS,
)
"""What responses depend on beside the task's inputs: our code, and the versions of libraries."""

CODE_VERSION = hashlib.sha256("".join(map(file_digest, CODE)).encode()).hexdigest()[:16]


# A policy is uploaded to a new place whenever it is opened, so its files stand for it.
CACHE = Cache(version=CODE_VERSION, ignored_inputs=("policy",))


@task(container_image=TRAIN, cache=CACHE)
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
    return _sample(model, rollout, evaluation, seed, policy, held_out)


@task(container_image=ROLLOUT, cache=CACHE)
def vllm_sample_held_out(
    model: Model,
    rollout: Rollout,
    evaluation: Evaluation,
    seed: int,
    policy: Policy,
    files_digest: str,
    held_out: Table,
) -> Table:
    """Sample responses to held-out prompts, where vLLM is installed; kept for the same reason."""
    return _sample(model, rollout, evaluation, seed, policy, held_out)


def _sample(
    model: Model,
    rollout: Rollout,
    evaluation: Evaluation,
    seed: int,
    policy: Policy,
    held_out: Table,
) -> Table:
    from tasks.evaluation.held_out import sample_held_out as sample

    config = RunConfig(
        algorithm="evaluation",
        job=Job(name="evaluation", seed=seed),
        model=model,
        rollout=rollout,
        evaluation=evaluation,
    )
    return sample(config, policy.local(), held_out)
