"""Flyte tasks: accuracy on held-out prompts, in the image that has the engine."""

import time
from typing import NamedTuple

from flytekit import task

from configs.plan import AnyConfig
from configs.run import RunConfig
from images.roles import ROLLOUT, TRAIN
from tasks.data.arrow import Table
from tasks.handle import Policy


class Evaluated(NamedTuple):
    """Held-out metrics by name and the seconds it took."""

    metrics: dict[str, float]
    seconds: float


@task(container_image=TRAIN)
def evaluate(config: RunConfig, policy: Policy, held_out: Table) -> Evaluated:
    """Measure held-out accuracy; no training state and no random number of training is touched."""
    return _evaluate(config, policy, held_out)


@task(container_image=ROLLOUT)
def vllm_evaluate(config: RunConfig, policy: Policy, held_out: Table) -> Evaluated:
    """Measure held-out accuracy, where vLLM is installed."""
    return _evaluate(config, policy, held_out)


def _evaluate(config: RunConfig, policy: Policy, held_out: Table) -> Evaluated:
    started = time.perf_counter()
    from tasks.evaluation.held_out import evaluate as measure

    metrics = measure(config, policy.local(), held_out)
    return Evaluated(metrics, time.perf_counter() - started)


def evaluation_due(config: AnyConfig, step: int) -> bool:
    """Return whether the policy before training step `step` is evaluated within the loop."""
    every = config.evaluation.every
    return step == 0 or (every > 0 and step % every == 0)
