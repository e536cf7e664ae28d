"""OUTCOMES to numbers: what a run logs and what an evaluation reports."""

import math
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tasks.evaluation.estimators import interval


def measure(outcomes: pa.Table, ks: Sequence[int]) -> dict[str, float]:
    """Return the metrics of an OUTCOMES table by name.

    Accuracy, pass@k and reward are means over prompts. A response of which it is not known whether
    it is right is counted and otherwise left out, as is a prompt without any other.
    """
    rates = accuracies(outcomes)
    low, high = interval(known(rates))
    num_responses = _total(outcomes, "num_samples")
    return {
        "val/accuracy": _mean(rates),
        "val/accuracy_low": low,
        "val/accuracy_high": high,
        "val/reward_mean": _mean(rewards(outcomes)),
        "val/response_length_mean": _total(outcomes, "num_tokens") / num_responses,
        "val/truncated_fraction": _total(outcomes, "num_truncated") / num_responses,
        "val/num_unscored": num_responses - _total(outcomes, "num_judged"),
        "val/num_error": _total(outcomes, "num_error"),
        "val/num_timeout": _total(outcomes, "num_timeout"),
        "val/num_responses": num_responses,
        **_passes(outcomes, ks),
        **_by_source(outcomes["source"].to_pylist(), rates),
    }


def accuracies(outcomes: pa.Table) -> np.ndarray:
    """Return the share of right responses of every prompt: [P], NaN where none was judged."""
    right, judged = (outcomes[name].to_numpy() for name in ("num_correct", "num_judged"))
    return np.divide(right, judged, out=np.full(len(right), np.nan), where=judged > 0)


def passes(outcomes: pa.Table, k: int) -> np.ndarray:
    """Return the estimate of pass@k of every prompt: [P], NaN where fewer than k were judged."""
    rows = outcomes["pass_at"].to_pylist()
    return np.array([dict(row).get(k, np.nan) for row in rows], dtype=float)


def rewards(outcomes: pa.Table) -> np.ndarray:
    """Return the mean reward of every prompt: [P], NaN where no response was scored."""
    return outcomes["mean_reward"].to_numpy()


def known(values: np.ndarray) -> np.ndarray:
    """Return the values that are not NaN."""
    return values[~np.isnan(values)]


def _passes(outcomes: pa.Table, ks: Sequence[int]) -> dict[str, float]:
    found = {}
    for k in ks:
        values = passes(outcomes, k)
        low, high = interval(known(values))
        found |= {
            f"val/pass_at/{k}": _mean(values),
            f"val/pass_at_low/{k}": low,
            f"val/pass_at_high/{k}": high,
        }
    return found


def _by_source(sources: Sequence[str], rates: np.ndarray) -> dict[str, float]:
    """Return the accuracy of every source, named so that a tracking store takes it; one: none."""
    names = np.array([re.sub(r"[^A-Za-z0-9_.-]", "_", source) for source in sources])
    of_each = {name: _mean(rates[names == name]) for name in np.unique(names).tolist()}
    if len(of_each) == 1:
        return {}
    return {f"val/accuracy_of/{name}": accuracy for name, accuracy in of_each.items()}


def _mean(values: np.ndarray) -> float:
    values = known(values)
    return float(values.mean()) if len(values) else math.nan


def _total(outcomes: pa.Table, name: str) -> float:
    return float(outcomes[name].to_numpy().sum())
