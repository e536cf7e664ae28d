"""What a few samples of a few prompts say about a policy: estimates and their intervals."""

import math

import numpy as np

from tasks.annotators.pass_at_k import chance_of_all

Z_95 = 1.959964
"""Two-sided 95 % quantile of the standard normal distribution."""


def pass_at_k(num_correct: np.ndarray, num_judged: np.ndarray, k: int) -> np.ndarray:
    """Return the unbiased estimate of pass@k of every prompt: [P], NaN with fewer than k samples.

    `1 - C(n - c, k) / C(n, k)`: of all ways to choose k of the n samples, the share that has one
    of the c right ones. Source: Chen et al., "Evaluating Large Language Models Trained on Code",
    arXiv:2107.03374.

    Raises:
        ValueError: k is below 1, or a prompt has more right samples than samples.

    >>> pass_at_k(np.array([1, 0, 3]), np.array([4, 4, 4]), k=2)
    array([0.5, 0. , 1. ])
    """
    total, right = np.asarray(num_judged, dtype=float), np.asarray(num_correct, dtype=float)
    if k < 1 or (right > total).any() or (right < 0).any():
        raise ValueError(
            f"pass@k with k={k}, {num_correct} right of {num_judged} samples: expected k of 1 or "
            "more and no more right samples than samples"
        )
    return np.where(total >= k, 1.0 - chance_of_all(total - right, total, k), np.nan)


def interval(values: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the mean of a value per prompt, each between 0 and 1: [P].

    Prompts are the unit: samples of one prompt are not independent. Where every value is 0 or 1 it
    is Wilson's, else `mean +- 1.96 sd / sqrt(P)`, cut to [0, 1]; without values, NaN.

    >>> [round(bound, 3) for bound in interval(np.array([0.25, 0.5, 0.75]))]
    [0.217, 0.783]
    """
    if not len(values):
        return math.nan, math.nan
    if np.isin(values, (0.0, 1.0)).all():
        return wilson_interval(int(values.sum()), len(values))
    low, high = normal_interval(values)
    return max(0.0, low), min(1.0, high)


def normal_interval(values: np.ndarray) -> tuple[float, float]:
    """Return `mean +- 1.96 sd / sqrt(P)` of a value per prompt; NaN for fewer than two.

    Source: the central limit theorem, as for questions with several answers or for the differences
    of paired ones in Miller, "Adding Error Bars to Evals", arXiv:2411.00640.
    """
    if len(values) < 2:  # noqa: PLR2004 - one value has no spread
        return math.nan, math.nan
    centre = float(values.mean())
    half = Z_95 * float(values.std(ddof=1)) / math.sqrt(len(values))
    return centre - half, centre + half


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
