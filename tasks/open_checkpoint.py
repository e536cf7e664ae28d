"""Flyte task: find the policy to evaluate."""

from typing import NamedTuple

from flytekit import task

from configs.run import RunConfig
from images.roles import TRAIN
from tasks.handle import Policy, handle


class OpenedCheckpoint(NamedTuple):
    """A policy and where it was found."""

    policy: Policy
    origin: str


@task(container_image=TRAIN)
def open_checkpoint(config: RunConfig, checkpoint: str) -> OpenedCheckpoint:
    """Open a checkpoint, a Hugging Face directory or a model of the hub."""
    from tasks.policy.named import find_policy

    found = find_policy(checkpoint, config)
    return OpenedCheckpoint(handle(found.files, step=found.step, identity=""), found.origin)
