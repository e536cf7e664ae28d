"""Tests of two policies on the same prompts: what differs within a prompt is what counts."""

import numpy as np

MAX_FLIPS = 10_000
"""Random sign flips; where there are no more than so many of them in all, each is made."""

TIE = 1e-9
"""Sums of differences that are closer than this, relative to the largest, count as equal."""


def mcnemar(num_first_only: int, num_second_only: int) -> float:
    """Return the exact two-sided p-value of McNemar's test.

    Of the prompts that one policy alone gets right, each is as likely the first's as the second's
    if both are equally good: `2 P(X <= min)` for X binomial with probability 1/2, at most 1.
    Source: McNemar, "Note on the sampling error of the difference between correlated proportions
    or percentages", 1947, in its exact form.

    >>> round(mcnemar(5, 15), 6)
    0.041389
    """
    num_trials = num_first_only + num_second_only
    ways, term = 0, 1
    for successes in range(min(num_first_only, num_second_only) + 1):
        ways += term
        term = term * (num_trials - successes) // (successes + 1)
    return min(1.0, 2 * ways / 2**num_trials)


def sign_flip(differences: np.ndarray, *, seed: int = 0) -> float:
    """Return the two-sided p-value of the paired permutation test of a mean difference of 0: [P].

    If both policies are equally good, the sign of a prompt's difference is as likely the other one.
    The share of all ways to set the signs whose sum is at least as far from 0 as the one seen; of
    10,000 random ones where there are more, the one seen counted among them, so that no p-value
    is 0. Sources: Fisher, "The Design of Experiments", 1935; for the latter Phipson and Smyth,
    "Permutation P-values should never be zero", 2010.

    >>> sign_flip(np.array([1.0, 1.0, 1.0]))
    0.25
    """
    differing = differences[differences != 0]
    if not len(differing):
        return 1.0
    seen = abs(differing.sum()) - TIE * np.abs(differing).max()
    if 2 ** len(differing) <= MAX_FLIPS:
        sums = np.zeros(1)
        for value in differing:
            sums = np.concatenate([sums + value, sums - value])
        return float((np.abs(sums) >= seen).mean())
    generator = np.random.Generator(np.random.PCG64(seed))
    flips = (generator.choice((-1.0, 1.0), size=len(differing)) for _ in range(MAX_FLIPS))
    num_extreme = sum(abs(differing @ signs) >= seen for signs in flips)
    return float((num_extreme + 1) / (MAX_FLIPS + 1))
