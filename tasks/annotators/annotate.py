"""SCORED to ANNOTATED: the advantage of every row and the mask of every token."""

import numpy as np
import pyarrow as pa

from configs.rl import Rl
from tasks.annotators import masks
from tasks.annotators.advantage import group_advantages
from tasks.annotators.batch_whitened import batch_whitened_advantages
from tasks.annotators.leave_one_out import leave_one_out_advantages
from tasks.annotators.maxrl import maxrl_advantages
from tasks.annotators.pass_at_k import pass_at_k_advantages
from tasks.data.schemas import ANNOTATED, SCORED, extend, lengths, require


def annotate(table: pa.Table, rl: Rl) -> pa.Table:
    """Return the ANNOTATED table of a SCORED one that holds whole groups.

    Statistics come first, over all scored rows; masks come second and take a row out together with
    its advantage. A response that could not be scored has advantage 0 and no token that trains.

    Raises:
        TypeError: `table` is not a SCORED table.
        ValueError: a reward is infinite or outside what `rl.advantage` can use.
    """
    table = require(table, SCORED, stage="annotate")
    rewards, group_ids = read_rewards(table), table.column("group_id").to_numpy()
    reasons = _masked_rows(table, rewards, group_ids, rl)
    prefix = _masked_prefix(table, group_ids, rl)
    columns = {
        "advantage": _advantages(rewards, group_ids, rl).astype(np.float32),
        "loss_mask": _loss_mask(table, np.any(list(reasons.values()), axis=0), prefix),
        "annotations": _join({**reasons, "shared-prefix": prefix > 0}),
    }
    return extend(table, ANNOTATED, columns, stage="annotate")


def read_rewards(table: pa.Table) -> np.ndarray:
    """Return the `reward` column [N] as float64, NaN where it is null."""
    return table.column("reward").to_numpy(zero_copy_only=False).astype(np.float64)


def _advantages(rewards: np.ndarray, group_ids: np.ndarray, rl: Rl) -> np.ndarray:
    match rl.advantage:
        case "group":
            return group_advantages(rewards, group_ids, unbiased_advantage=rl.unbiased_advantage)
        case "leave_one_out":
            return leave_one_out_advantages(rewards, group_ids)
        case "batch_whitened":
            return batch_whitened_advantages(rewards, group_ids)
        case "maxrl":
            return maxrl_advantages(rewards, group_ids)
        case "pass_at_k":
            return pass_at_k_advantages(rewards, group_ids, k=rl.pass_k)


def _masked_rows(
    table: pa.Table, rewards: np.ndarray, group_ids: np.ndarray, rl: Rl
) -> dict[str, np.ndarray]:
    reasons = {"unscored": masks.unscored(rewards)}
    if rl.mask_truncated:
        reasons["truncated"] = masks.truncated(table.column("finish_reason"))
    if rl.drop_zero_variance_groups:
        reasons["zero-variance"] = masks.zero_variance(rewards, group_ids)
    return reasons


def _masked_prefix(table: pa.Table, group_ids: np.ndarray, rl: Rl) -> np.ndarray:
    if rl.min_shared_prefix_tokens == 0:
        return np.zeros(len(table), dtype=np.int64)
    responses = table.column("response_tokens")
    return masks.shared_prefix(responses, group_ids, min_tokens=rl.min_shared_prefix_tokens)


def _loss_mask(table: pa.Table, masked: np.ndarray, prefix: np.ndarray) -> pa.Array:
    num_tokens = lengths(table.column("response_tokens"))
    offsets = np.concatenate([[0], np.cumsum(num_tokens)]).astype(np.int32)
    kept = masks.token_positions(num_tokens) >= np.repeat(prefix, num_tokens)
    kept &= ~np.repeat(masked, num_tokens)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(kept))


def _join(reasons: dict[str, np.ndarray]) -> pa.Array:
    """Return [N] strings: the names of the reasons that hold for a row, comma-separated."""
    names = list(reasons)
    code = sum(held.astype(np.int32) << bit for bit, held in enumerate(reasons.values()))
    texts = [
        ",".join(name for bit, name in enumerate(names) if value >> bit & 1)
        for value in range(1 << len(names))
    ]
    return pa.array(texts).take(pa.array(code))
