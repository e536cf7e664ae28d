"""ROLLOUTS to JUDGED to OUTCOMES: which responses are right, and what they say of every prompt."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from configs.evaluation import WHOLE_REWARD, correct_parts
from configs.run import RunConfig
from tasks.annotators.annotate import read_rewards
from tasks.data.schemas import JUDGED, OUTCOMES, extend, lengths
from tasks.evaluation.estimators import pass_at_k
from tasks.rewards.score import score

FULL = 1.0
"""The value from which on a part says that a response is right."""

STAGE = "score_held_out"
OF_PROMPT = ("prompt_id", "source", "prompt_text", "answer")


def score_held_out(config: RunConfig, rollouts: pa.Table) -> pa.Table:
    """Return the JUDGED table of a ROLLOUTS one; rewards are without penalties for length.

    Raises:
        ValueError: as scoring does, or a response was scored without the part that decides.
    """
    plain = config.reward.model_copy(update={"overlong_buffer_tokens": 0})
    (part,) = correct_parts(config.evaluation, config.reward)
    return judge(score(rollouts, plain), part)


def judge(scored: pa.Table, part: str) -> pa.Table:
    """Return the JUDGED table of a SCORED one.

    A response is right where the part is at least 1. Where the part is absent because the response
    could not be scored, `correct` is null: neither right nor wrong.

    Args:
        scored: SCORED, its rewards without penalties for length.
        part: name of a part, or `WHOLE_REWARD`.

    Raises:
        ValueError: responses that were scored lack the part.
    """
    rewards = read_rewards(scored)
    values = rewards if part == WHOLE_REWARD else _part(scored, part)
    num_lacking = int((np.isnan(values) & ~np.isnan(rewards)).sum())
    if num_lacking:
        found = sorted({name for row in scored["reward_parts"].to_pylist() for name, _ in row})
        raise ValueError(
            f"evaluation.correct_part={part!r}: {num_lacking} of {len(scored)} responses were "
            f"scored without such a part, the parts are {found}; name one that every score has"
        )
    correct = pa.array(values >= FULL, mask=np.isnan(values))
    return extend(scored, JUDGED, {"correct": correct}, stage=STAGE)


def outcomes(judged: pa.Table, ks: Sequence[int]) -> pa.Table:
    """Return the OUTCOMES table: one row per prompt, in the order of their first responses.

    Args:
        judged: JUDGED; the responses of a prompt may lie apart.
        ks: every k to estimate pass@k for.
    """
    counts = _counts(judged)
    rows = judged.select(["group_id", *OF_PROMPT, "reward"])
    for name, values in counts.items():
        rows = rows.append_column(name, pa.array(values))
    firsts = [(name, "first") for name in OF_PROMPT]
    sums = [(name, "sum") for name in counts]
    # One thread keeps the groups in the order in which they are met.
    found = rows.group_by("group_id", use_threads=False).aggregate(
        [*firsts, *sums, ("reward", "mean")]
    )
    totals = {name: found[f"{name}_sum"].to_numpy() for name in counts}
    columns = {
        **{name: found[f"{name}_first"] for name in OF_PROMPT},
        **totals,
        "mean_reward": found["reward_mean"],
        "pass_at": _pass_at(totals["num_correct"], totals["num_judged"], ks),
    }
    return extend(found.select(["group_id"]), OUTCOMES, columns, stage=STAGE)


def _counts(judged: pa.Table) -> dict[str, np.ndarray]:
    """Return what is counted of every response: [N] integers by the name of the sum."""
    correct, status = judged["correct"], judged["reward_status"]
    is_unknown = correct.is_null()
    flags = {
        "num_judged": correct.is_valid(),
        "num_correct": pc.fill_null(correct, False),
        "num_error": pc.and_(is_unknown, pc.equal(status, "error")),
        "num_timeout": pc.and_(is_unknown, pc.equal(status, "timeout")),
        "num_truncated": pc.equal(judged["finish_reason"], "length"),
    }
    return {
        "num_samples": np.ones(len(judged), dtype=np.int64),
        **{name: flag.to_numpy().astype(np.int64) for name, flag in flags.items()},
        "num_tokens": lengths(judged["response_tokens"]),
    }


def _pass_at(
    num_correct: np.ndarray, num_judged: np.ndarray, ks: Sequence[int]
) -> list[list[tuple[int, float]]]:
    """Return the items of every prompt's map from k to pass@k."""
    estimates = {k: pass_at_k(num_correct, num_judged, k).tolist() for k in ks}
    return [
        [(k, of[row]) for k, of in estimates.items() if num_judged[row] >= k]
        for row in range(len(num_judged))
    ]


def _part(scored: pa.Table, part: str) -> np.ndarray:
    """Return the values [N] of a part, NaN where a response has it not."""
    rows = scored["reward_parts"].to_pylist()
    return np.array([dict(row).get(part, np.nan) for row in rows], dtype=float)
