"""Flyte task: update the policy on one batch."""

import time
from typing import NamedTuple

from flytekit import task

from configs.run import RunConfig
from images.roles import TRAIN
from tasks.data.arrow import Table
from tasks.handle import Policy, handle, new_directory


class TrainedChunks(NamedTuple):
    """The updated policy, what the update did, and the seconds it took."""

    policy: Policy
    metrics: dict[str, float]
    seconds: float


@task(container_image=TRAIN)
def train_chunks(
    config: RunConfig,
    step: int,
    policy: Policy,
    behaviour: Policy,
    auxiliary: dict[str, Policy],
    annotated: Table,
) -> TrainedChunks:
    """Take the optimizer steps of one batch, which `behaviour` sampled; write the new policy."""
    started = time.perf_counter()
    from tasks.data.schemas import ANNOTATED, TEACHER, require
    from tasks.trainer.loop import train

    schema = TEACHER if "teacher_logprobs" in annotated.column_names else ANNOTATED
    table = require(annotated, schema, stage="train_chunks", run=config.job.name, step=step)
    others = {role: other.local() for role, other in auxiliary.items()}
    files, to = policy.local(), (new_directory(), new_directory())
    sampled_by = files if behaviour.version == policy.version else behaviour.local()
    trained = train(config, table, files, to, others, behaviour=sampled_by)
    updated = handle(trained.policy, step=step + 1, identity=trained.identity)
    return TrainedChunks(updated, trained.metrics, time.perf_counter() - started)
