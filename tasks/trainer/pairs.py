"""Preference pairs in memory, cut into chunks of bounded size, and a chunk as tensors."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from objectives.pairs import PreferenceBatch
from tasks.trainer.rows import Lists, Rows, collate, plan_chunks, token_lists

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PairRows:
    """Pairs of completions that train, as arrays per pair.

    Attributes:
        ids: pair ids [N].
        prompts: token ids of each prompt.
        chosen: of each chosen completion.
        rejected: of each rejected completion.
        reference_chosen: log-probability of the chosen completion under the reference [N], nats.
        reference_rejected: of the rejected one.
    """

    ids: Numbers
    prompts: Lists
    chosen: Lists
    rejected: Lists
    reference_chosen: npt.NDArray[np.float32]
    reference_rejected: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def widths(self) -> Numbers:
        """Lengths of each prompt and of its longer completion [N, 2]."""
        sides = zip(self.prompts, self.chosen, self.rejected, strict=True)
        lengths = [(len(p), max(len(c), len(r))) for p, c, r in sides]
        return np.array(lengths, dtype=np.int64).reshape(-1, 2)

    def chunks(
        self, part: Numbers, *, max_tokens: int, device: torch.device
    ) -> list[PreferenceBatch]:
        """Lay some pairs out in chunks of at most so many padded tokens, a pair being two rows."""
        return [self.collate(chunk, device) for chunk in self.plan(part, max_tokens=max_tokens)]

    def plan(self, part: Numbers, *, max_tokens: int) -> list[Numbers]:
        """Return the numbers of the pairs of each chunk."""
        return plan_chunks(self.widths, part, max_tokens=max_tokens // 2)

    def collate(self, chunk: Numbers, device: torch.device) -> PreferenceBatch:
        """Lay pairs out as tensors: all chosen completions, then all rejected ones."""
        picked = chunk.tolist()
        responses = [self.chosen[row] for row in picked] + [self.rejected[row] for row in picked]
        sides = Rows(
            ids=np.arange(2 * len(picked)),
            prompts=[self.prompts[row] for row in picked] * 2,
            responses=responses,
            masks=[np.ones(len(tokens), dtype=np.bool_) for tokens in responses],
            advantages=np.zeros(2 * len(picked), dtype=np.float32),
            engine_logprobs=[np.full(len(t), np.nan, dtype=np.float32) for t in responses],
        )
        return PreferenceBatch(
            pair_ids=torch.from_numpy(self.ids[chunk]).to(device),
            responses=collate(sides, np.arange(2 * len(picked)), device),
            reference_chosen=torch.from_numpy(self.reference_chosen[chunk]).to(device),
            reference_rejected=torch.from_numpy(self.reference_rejected[chunk]).to(device),
        )


def read_pair_rows(table: pa.Table) -> PairRows:
    """Take the columns that train out of a table of pairs; an absent reference is all zeros."""

    def reference(side: str) -> npt.NDArray[np.float32]:
        name = f"reference_{side}_logprob"
        absent = name not in table.column_names
        return np.zeros(len(table), np.float32) if absent else table[name].to_numpy().copy()

    return PairRows(
        ids=table["pair_id"].to_numpy().copy(),
        prompts=token_lists(table["prompt_tokens"]),
        chosen=token_lists(table["chosen_tokens"]),
        rejected=token_lists(table["rejected_tokens"]),
        reference_chosen=reference("chosen"),
        reference_rejected=reference("rejected"),
    )


def without_last(batch: PreferenceBatch) -> PreferenceBatch:
    """Return the batch with a last pair of which no token trains, for a proof to trip over."""
    last = batch.num_sequences - 1
    mask = batch.responses.loss_mask.clone()
    mask[[last, 2 * last + 1]] = False
    responses = replace(batch.responses, loss_mask=mask, token_counts=mask.sum(1))
    return replace(batch, responses=responses)
