"""Diagnostics of preference objectives: every one a `Metric`, by local name, and its public name.

Shapes: `P` pairs. An implicit reward is beta times the log-ratio of policy and reference.
"""

import torch
from torch import Tensor

from objectives.metrics import Metric, MetricAdapter

DPO_METRICS = MetricAdapter(
    {
        "loss": "train/loss",
        "accuracy": "train/preference/accuracy",
        "margin": "train/preference/margin",
        "margin_min": "train/preference/margin_min",
        "reward_chosen": "train/preference/reward_chosen",
        "reward_rejected": "train/preference/reward_rejected",
        "num_pairs": "train/preference/num_pairs",
        "num_tokens": "train/num_tokens",
        "sft_loss": "train/sft_loss",
        "error_chosen": "train/denoising/error_chosen",
        "error_rejected": "train/denoising/error_rejected",
    }
)
"""Public names of everything that a preference objective reports."""


@torch.no_grad()
def preference_metrics(
    loss: Tensor, rewards: tuple[Tensor, Tensor], trains: Tensor
) -> dict[str, Metric]:
    """Return what every preference objective reports of its pairs, [P] each.

    Rewards are implicit ones, of the chosen and of the rejected.

    A pair whose margin is exactly 0, as all are at the start, counts as half right: a policy that
    is its reference has an accuracy of one half, that of a coin.
    """
    reward_chosen, reward_rejected = rewards
    margin = reward_chosen - reward_rejected
    right = (margin > 0).double() + (margin == 0).double() / 2
    return {
        "loss": Metric.mean(loss, trains),
        "accuracy": Metric.mean(right, trains),
        "margin": Metric.mean(margin, trains),
        "margin_min": Metric.min(margin, trains),
        "reward_chosen": Metric.mean(reward_chosen, trains),
        "reward_rejected": Metric.mean(reward_rejected, trains),
        "num_pairs": Metric.sum(trains.sum()),
    }
