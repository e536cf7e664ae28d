"""What one step's table says about rewards, groups and responses."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.annotators import masks
from tasks.annotators.annotate import read_rewards
from tasks.annotators.groups import gather
from tasks.data.schemas import REWARD_STATUSES, lengths


def group_summary(table: pa.Table) -> dict[str, float]:
    """Return statistics of a SCORED or ANNOTATED table, by metric name.

    Means and the (population) std of rewards are over scored rows, the mean of a reward part is
    over the rows that have it, lengths are in response tokens before any mask, and the fraction of
    masked tokens is there once the table has a mask. A mean of nothing is NaN.
    """
    rewards = read_rewards(table)
    return {
        **_rewards(rewards),
        **_statuses(table),
        **_parts(table),
        **_groups(rewards, table.column("group_id").to_numpy()),
        **_responses(table),
    }


def _rewards(rewards: np.ndarray) -> dict[str, float]:
    scored = rewards[~masks.unscored(rewards)]
    return {
        "reward/mean": _mean(scored),
        "reward/std": float(scored.std()) if scored.size else np.nan,
        "reward/num_unscored": float(rewards.size - scored.size),
    }


def _statuses(table: pa.Table) -> dict[str, float]:
    statuses = table.column("reward_status")
    return {
        f"reward/num_{status.replace('-', '_')}": float(
            pc.sum(pc.equal(statuses, status)).as_py() or 0
        )
        for status in REWARD_STATUSES
    }


def _parts(table: pa.Table) -> dict[str, float]:
    parts = pa.concat_tables([_pairs(chunk) for chunk in table.column("reward_parts").chunks])
    means = parts.group_by("name").aggregate([("value", "mean")]).to_pydict()
    pairs = sorted(zip(means["name"], means["value_mean"], strict=True))
    return {f"reward/part/{name}": float(value) for name, value in pairs}


def _pairs(parts: pa.MapArray) -> pa.Table:
    # `keys` and `items` are those of the whole buffer, of which a chunk may be a slice.
    offsets = parts.offsets.to_numpy()
    start, length = int(offsets[0]), int(offsets[-1] - offsets[0])
    return pa.table(
        {"name": parts.keys.slice(start, length), "value": parts.items.slice(start, length)}
    )


def _groups(rewards: np.ndarray, group_ids: np.ndarray) -> dict[str, float]:
    groups = gather(rewards, group_ids)
    return {
        "groups/num": float(groups.num_groups),
        "groups/zero_variance_fraction": _mean(groups.degenerate),
    }


def _responses(table: pa.Table) -> dict[str, float]:
    num_tokens = lengths(table.column("response_tokens"))
    summary = {
        "response/length_mean": _mean(num_tokens),
        "response/length_max": float(num_tokens.max(initial=0)),
        "response/length_min": float(num_tokens.min()) if num_tokens.size else 0.0,
        "response/truncated_fraction": _mean(masks.truncated(table.column("finish_reason"))),
    }
    if "loss_mask" in table.column_names:
        kept = pc.list_flatten(table.column("loss_mask")).to_numpy()
        summary["response/masked_token_fraction"] = 1.0 - _mean(kept)
    return summary


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else np.nan
