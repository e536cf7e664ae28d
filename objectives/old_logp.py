"""Log-probabilities of the behaviour policy, frozen for the updates made on one collected batch."""

from collections import Counter

import torch
from torch import Tensor

from objectives.primitives.shapes import require_shape


class OldLogpCache:
    """Holds log pi_old of every row of one collected batch and serves it by row id.

    The trainer freezes it before the batch's first update and clears it after the last one. A chunk
    that is padded to another width gets the rows cut or padded to its own: padding is never read.

    >>> cache = OldLogpCache()
    >>> cache.freeze(torch.tensor([7, 3]), torch.tensor([[-1.0, -2.0], [-3.0, 0.0]]))
    >>> cache.rows(torch.tensor([3]), width=3).tolist()
    [[-3.0, 0.0, 0.0]]
    """

    def __init__(self) -> None:
        self._rows: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def freeze(self, row_ids: Tensor, logprobs: Tensor) -> None:
        """Store a copy of the log-probabilities of these rows.

        May be called once per scoring chunk; a row may be frozen only once until `clear`.

        Args:
            row_ids: [B] int64.
            logprobs: [B, T] in nats.

        Raises:
            ValueError: if shapes disagree, or a row is already frozen: freezing it again after an
                update would silently move the behaviour policy.
        """
        require_shape("row_ids", row_ids, (None,))
        require_shape("logprobs", logprobs, (row_ids.shape[0], None))
        ids = _as_ints(row_ids)
        repeated = sorted(row for row, n in Counter(ids).items() if n > 1 or row in self._rows)
        if repeated:
            raise ValueError(
                f"rows {repeated} are frozen already; call clear() when a new batch is collected"
            )
        self._rows.update(zip(ids, logprobs.detach().clone().unbind(), strict=True))

    def rows(self, row_ids: Tensor, *, width: int) -> Tensor:
        """Return [B, width] frozen log-probabilities, padded with 0 or cut to `width`.

        Raises:
            KeyError: naming the rows that are not held.
        """
        ids = _as_ints(row_ids)
        missing = [row for row in ids if row not in self._rows]
        if missing:
            raise KeyError(
                f"no frozen log-probabilities for rows {missing[:8]}; freeze every row of the "
                "collected batch before its first update"
            )
        rows = [self._rows[row] for row in ids]
        return torch.stack([_fit(row, width) for row in rows]).to(row_ids.device)

    def clear(self) -> None:
        """Forget every row; the next batch is scored anew."""
        self._rows.clear()


def _as_ints(row_ids: Tensor) -> list[int]:
    return [int(row) for row in row_ids.cpu().numpy()]


def _fit(row: Tensor, width: int) -> Tensor:
    if row.shape[0] == width:
        return row
    return torch.nn.functional.pad(row[:width], (0, max(0, width - row.shape[0])))
