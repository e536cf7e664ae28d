"""Flyte task: held-out preferences."""

import time

from flytekit import task

from configs.dpo import DpoConfig
from images.roles import TRAIN
from tasks.data.arrow import Table
from tasks.evaluate import Evaluated
from tasks.handle import Policy


@task(container_image=TRAIN)
def evaluate_pairs(
    config: DpoConfig, policy: Policy, auxiliary: dict[str, Policy], held_out: Table
) -> Evaluated:
    """Measure loss, margins and accuracy on held-out pairs; no training state is touched."""
    started = time.perf_counter()
    from tasks.trainer.preferences import evaluate_preferences

    files = policy.local()
    others = {role: other.local() for role, other in auxiliary.items()}
    metrics = evaluate_preferences(config, held_out, files, others)
    if config.dpo.pairs == "points":
        from tasks.sampling.points import preferred_share

        share = preferred_share(files, num_points=config.evaluation.num_pairs)
        metrics["val/preferred_share"] = share
    return Evaluated(metrics, time.perf_counter() - started)
