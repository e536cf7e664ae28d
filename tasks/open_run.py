"""Flyte task: open the tracking run, and find where to start from."""

from flytekit import task

from configs.dpo import DpoConfig
from configs.run import RunConfig
from images.roles import TRAIN
from tasks.data.arrow import Table
from tasks.handle import Policy, Run


@task(container_image=TRAIN)
def open_run(config: RunConfig, fingerprint: str, resume_from: str) -> Run:
    """Open the run: find the checkpoint to continue from and create or reopen its MLflow run."""
    from tasks.run.opening import open_training_run
    from tasks.trainer.loop import build_objective

    return Run(**open_training_run(config, build_objective(config), fingerprint, resume_from))


@task(container_image=TRAIN)
def open_pair_run(
    config: DpoConfig,
    policy: Policy,
    train: Table,
    held_out: Table,
    fingerprint: str,
    resume_from: str,
) -> Run:
    """Open a run on preference pairs, whose reference scores must be those of its first policy."""
    from tasks.run.opening import open_training_run
    from tasks.trainer.preferences import build_preference_objective
    from tasks.trainer.reference_scores import require_own_reference

    if config.dpo.pairs == "text":
        require_own_reference((train, held_out), policy.local(), dtype=config.model.dtype)
    objective = build_preference_objective(config)
    return Run(**open_training_run(config, objective, fingerprint, resume_from))
