"""Flyte task: open the tracking run, and find where to start from."""

from flytekit import task

from configs.run import RunConfig
from images.roles import TRAIN
from tasks.handle import Run


@task(container_image=TRAIN)
def open_run(config: RunConfig, fingerprint: str, resume_from: str) -> Run:
    """Open the run: find the checkpoint to continue from and create or reopen its MLflow run."""
    from tasks.run.opening import open_training_run
    from tasks.trainer.loop import build_objective

    return Run(**open_training_run(config, build_objective(config), fingerprint, resume_from))
