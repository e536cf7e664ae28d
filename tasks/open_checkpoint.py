"""Flyte task: find the policy to evaluate."""

from typing import Annotated, NamedTuple

from flytekit import task
from flytekit.core.hash import HashMethod

from configs.run import RunConfig
from images.roles import TRAIN
from tasks.handle import Policy, handle


def _files_digest(policy: Policy) -> str:
    from tasks.policy.directory import files_digest

    return files_digest(policy.local().weights)


class OpenedCheckpoint(NamedTuple):
    """A policy, where it was found, and a digest of its files, by which its responses are kept."""

    policy: Annotated[Policy, HashMethod(_files_digest)]
    origin: str
    files_digest: str


@task(container_image=TRAIN)
def open_checkpoint(config: RunConfig, checkpoint: str) -> OpenedCheckpoint:
    """Open a checkpoint, a Hugging Face directory or a model of the hub."""
    from tasks.policy.named import find_policy

    found = find_policy(checkpoint, config)
    policy = handle(found.files, step=found.step, identity="")
    return OpenedCheckpoint(policy, found.origin, _files_digest(policy))
