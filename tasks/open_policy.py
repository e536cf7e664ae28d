"""Flyte tasks: the policy that a run starts from."""

import time
from pathlib import Path
from typing import NamedTuple

from flytekit import Cache, task

from configs.data import Data
from configs.dpo import Denoiser
from configs.model import Model
from images.roles import TRAIN
from tasks.handle import Policy, Run, handle
from tasks.policy.start import DENOISER_VERSION, POLICY_VERSION


class Opened(NamedTuple):
    """A policy and the seconds it took to make or find it."""

    policy: Policy
    seconds: float


@task(container_image=TRAIN, cache=Cache(version=POLICY_VERSION, serialize=True))
def bootstrap_policy(model: Model, data: Data, seed: int, output_root: str) -> Opened:
    """Build, unpack or open the untrained policy that the `model` section names."""
    started = time.perf_counter()
    from tasks.policy.start import initial_policy

    files = initial_policy(model, data, seed=seed, output_root=Path(output_root).resolve())
    return Opened(handle(files, step=0, identity=""), time.perf_counter() - started)


@task(container_image=TRAIN, cache=Cache(version=DENOISER_VERSION, serialize=True))
def bootstrap_denoiser(denoiser: Denoiser, seed: int, output_root: str) -> Opened:
    """Train the embedded denoiser of points, before any preference."""
    started = time.perf_counter()
    from tasks.policy.start import initial_denoiser

    files = initial_denoiser(denoiser, seed=seed, output_root=Path(output_root).resolve())
    return Opened(handle(files, step=0, identity=""), time.perf_counter() - started)


@task(container_image=TRAIN)
def resume_policy(run: Run) -> Policy:
    """Open the checkpoint that the run continues from."""
    from tasks.policy.checkpoints import read

    found = read(Path(run.checkpoint))
    if found is None:
        raise ValueError(
            f"checkpoint {run.checkpoint} is gone or altered since the run was opened; start again"
        )
    return handle(found.policy, step=found.step, identity=run.identity)
