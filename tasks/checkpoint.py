"""Flyte task: publish the policy when it is due, and let superseded hand-offs go."""

import json
from pathlib import Path

from flytekit import task

from configs.dpo import DpoConfig
from configs.overlap import is_spent
from configs.plan import AnyConfig
from configs.run import RunConfig
from images.roles import LIGHT
from tasks.handle import Policy, Run, handle, release
from tasks.scratch import sweep


@task(container_image=LIGHT)
def checkpoint(
    config: RunConfig, run: Run, before: Policy, behaviour: Policy, after: Policy, logged: int
) -> Policy:
    """Publish the updated policy every `rl.save_every` steps and after the last one.

    Beside its files lies `policy.json`, with which `pyflyte run` can start any task on it.
    """
    _publish(config, run, after)
    for policy in {p.step: p for p in (before, behaviour)}.values():
        if is_spent(config, policy.step, before.step, run.start_step):
            release(policy)
    return after


@task(container_image=LIGHT)
def checkpoint_pairs(
    config: DpoConfig, run: Run, before: Policy, after: Policy, logged: int
) -> Policy:
    """Publish a policy trained on pairs, every `dpo.save_every` steps and after the last one."""
    _publish(config, run, after)
    release(before)
    return after


def _publish(config: AnyConfig, run: Run, after: Policy) -> None:
    from tasks.policy import checkpoints
    from tasks.run.files import write_text

    if checkpoint_due(config, after.step):
        root = Path(run.directory) / "checkpoints"
        published = checkpoints.publish(
            root,
            after.local(),
            step=after.step,
            lineage=json.loads(run.lineage),
            mlflow_run_id=run.mlflow_run_id,
        )
        policy = handle(published.policy, step=after.step, identity=after.identity)
        write_text(published.path / "policy.json", policy.model_dump_json(indent=2))
        checkpoints.prune(
            root, keep_last=config.trainer.keep_last, keep_every=config.trainer.keep_every
        )
    sweep(config.job.name, after.step)


def checkpoint_due(config: AnyConfig, step: int) -> bool:
    """Return whether a checkpoint is published before training step `step`."""
    every = config.schedule.save_every
    return step == config.schedule.max_steps or (every > 0 and step % every == 0)
