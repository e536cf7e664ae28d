"""Flyte task: update the policy on the preference pairs of a step."""

import json
import time

from flytekit import task

from configs.dpo import DpoConfig
from images.nodes import Nodes
from images.roles import TRAIN
from tasks.data.arrow import Table
from tasks.handle import Policy, Run, handle, new_directory
from tasks.train_chunks import TrainedChunks


@task(container_image=TRAIN, task_config=Nodes(), shared_memory=True)
def train_pairs(
    config: DpoConfig,
    run: Run,
    step: int,
    policy: Policy,
    auxiliary: dict[str, Policy],
    pairs: Table,
) -> TrainedChunks:
    """Take the optimizer steps of one batch of pairs and write the updated policy."""
    started = time.perf_counter()
    from tasks.data.references import require_fingerprint
    from tasks.data.schemas import POINTS, REFERENCED, require
    from tasks.trainer.launch import launch

    of_text = config.dpo.pairs == "text"
    schema = REFERENCED if of_text else POINTS
    table = require(pairs, schema, stage="train_pairs", run=config.job.name, step=step)
    if of_text:
        expected = json.loads(run.lineage)["data fingerprint"]
        require_fingerprint(table, expected, stage="train_pairs")
    others = {role: other.local() for role, other in auxiliary.items()}
    to = (new_directory(), new_directory())
    body = "tasks.trainer.preferences:train_preferences"
    trained = launch(body, config, table, policy.local(), to, others)
    updated = handle(trained.policy, step=step + 1, identity=trained.identity)
    return TrainedChunks(updated, trained.metrics, time.perf_counter() - started)
