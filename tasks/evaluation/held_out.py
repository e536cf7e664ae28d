"""Accuracy on held-out prompts, apart from the reward that trains."""

import math

import numpy as np
import pyarrow as pa

from configs.run import RunConfig
from tasks.annotators.annotate import read_rewards
from tasks.policy.files import PolicyFiles
from tasks.rewards.score import score
from tasks.sampling.rollout import evaluation_rollout

Z_95 = 1.959964
"""Two-sided 95 % quantile of the standard normal distribution."""


def evaluate(config: RunConfig, files: PolicyFiles, held_out: pa.Table) -> dict[str, float]:
    """Return held-out metrics: accuracy with its 95 % interval, mean reward, response length.

    A response is right when its reward, before any length penalty, is 1. An unscored one counts as
    not right and is reported.

    Raises:
        ValueError: there are fewer held-out prompts than `evaluation.num_prompts`.
    """
    if config.evaluation.num_prompts > len(held_out):
        raise ValueError(
            f"evaluation.num_prompts={config.evaluation.num_prompts} exceeds the {len(held_out)} "
            "usable held-out prompts; lower it"
        )
    prompts = held_out.slice(0, config.evaluation.num_prompts)
    table = evaluation_rollout(config, prompts, files)
    plain = config.reward.model_copy(update={"overlong_buffer_tokens": 0})
    rewards = read_rewards(score(table, plain))
    num_right = int((rewards >= 1).sum())
    low, high = wilson_interval(num_right, len(rewards))
    unscored = np.isnan(rewards)
    return {
        "val/accuracy": num_right / len(rewards),
        "val/accuracy_low": low,
        "val/accuracy_high": high,
        "val/reward_mean": float(rewards[~unscored].mean()) if not unscored.all() else math.nan,
        "val/num_unscored": float(unscored.sum()),
        "val/num_responses": float(len(rewards)),
    }


def wilson_interval(successes: int, trials: int, z: float = Z_95) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion.

    Source: Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", 1927.

    >>> [round(bound, 4) for bound in wilson_interval(8, 10)]
    [0.4902, 0.9433]
    """
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    spread = math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    half = z * spread / (1 + z * z / trials)
    return max(0.0, centre - half), min(1.0, centre + half)
