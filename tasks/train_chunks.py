"""Flyte task: update the policy on one batch."""

import time
from typing import NamedTuple

from flytekit import task

from configs.overlap import BEHAVIOUR
from configs.run import RunConfig
from images.nodes import Nodes
from images.roles import TRAIN
from tasks.data.arrow import Table
from tasks.handle import Policy, handle, new_directory


class TrainedChunks(NamedTuple):
    """The updated policy, what the update did, and the seconds it took."""

    policy: Policy
    metrics: dict[str, float]
    seconds: float


@task(container_image=TRAIN, task_config=Nodes(), shared_memory=True)
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
    from tasks.trainer.launch import launch

    schema = TEACHER if "teacher_logprobs" in annotated.column_names else ANNOTATED
    table = require(annotated, schema, stage="train_chunks", run=config.job.name, step=step)
    others = {role: other.local() for role, other in auxiliary.items()}
    if behaviour.version != policy.version:
        others[BEHAVIOUR] = behaviour.local()
    to = (new_directory(), new_directory())
    trained = launch("tasks.trainer.loop:train", config, table, policy.local(), to, others)
    updated = handle(trained.policy, step=step + 1, identity=trained.identity)
    return TrainedChunks(updated, trained.metrics, time.perf_counter() - started)
