"""A frozen teacher: scores for the table, and logits for a loss over the whole vocabulary.

Shapes: `B` sequences, `T` response positions, `n` tokens of a chunk, `V` vocabulary, `K` top-k.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from objectives.batch import TrajectoryBatch
from objectives.primitives.mapped import map_logits
from tasks.data.teaching import UNKNOWN_LOGPROB
from tasks.policy import resident
from tasks.policy.directory import load_model
from tasks.policy.files import PolicyFiles
from tasks.policy.vocabulary import vocabulary_size
from tasks.trainer.policy import PolicyModel


@dataclass(frozen=True, kw_only=True)
class FrozenTeacher:
    """A model that never trains, and its distribution over the ids that its tokenizer uses.

    Rows of the vocabulary head beyond those ids are padding: they are left out, and what is left
    is normalised.

    Attributes:
        model: its parameters carry no gradient.
        vocabulary_size: number of ids.
    """

    model: PolicyModel
    vocabulary_size: int

    @property
    def _weight(self) -> Tensor:
        return self.model.head.weight[: self.vocabulary_size]

    @torch.no_grad()
    def score(self, batch: TrajectoryBatch, *, temperature: float, topk: int) -> Tensor:
        """Return what the table keeps of each response token [N, 1 + 2 K], row by row.

        The log-probability of the token (nats), those of the teacher's K likeliest tokens, most
        probable first, and their ids; K is `topk` or the whole vocabulary, if that is less.
        """
        tokens = batch.response_tokens[batch.response_mask.bool()]
        num_likeliest = min(topk, self.vocabulary_size)

        def scores(logits: Tensor, positions: Tensor) -> Tensor:
            logprobs = (logits / temperature).log_softmax(-1)
            target = tokens[positions, None]
            known = target < self.vocabulary_size
            chosen = logprobs.gather(-1, torch.where(known, target, 0))
            likeliest = logprobs.topk(num_likeliest, dim=-1)
            parts = [torch.where(known, chosen, UNKNOWN_LOGPROB), *likeliest]
            return torch.cat([part.double() for part in parts], -1)

        return map_logits(self.model.response_hidden(batch.unrouted()), self._weight, scores)

    @torch.no_grad()
    def teacher_logits(self, batch: TrajectoryBatch) -> Callable[[Tensor], Tensor]:
        """Return the function from numbers of response tokens [n] to logits [n, V]."""
        hidden, weight = self.model.response_hidden(batch.unrouted()), self._weight

        def logits(positions: Tensor) -> Tensor:
            return hidden[positions].float() @ weight.float().T

        return logits


@dataclass(frozen=True, kw_only=True)
class FrozenTeachers:
    """Several teachers, each for some of the rows.

    Attributes:
        teachers: by role.
        roles: role of the teacher of a row, by row id.
    """

    teachers: Mapping[str, FrozenTeacher]
    roles: Mapping[int, str]

    def teacher_logits(self, batch: TrajectoryBatch) -> Callable[[Tensor], Tensor]:
        """Return the function from numbers of response tokens [n] to logits [n, V].

        All teachers share one vocabulary, so their logits have one width.
        """
        roles = [self.roles[row] for row in batch.row_ids.tolist()]
        parts = [self._part(batch, [r == role for r in roles], role) for role in set(roles)]

        def logits(positions: Tensor) -> Tensor:
            places = [owned[positions].nonzero()[:, 0] for owned, _ in parts]
            found = [
                of_part((owned.cumsum(0) - 1)[positions[place]])
                for place, (owned, of_part) in zip(places, parts, strict=True)
            ]
            return torch.cat(found)[torch.cat(places).argsort()]

        return logits

    def _part(
        self, batch: TrajectoryBatch, rows: list[bool], role: str
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return which response tokens [N] are a teacher's, and its logits by their numbers."""
        tokens = batch.response_mask.bool()
        chosen = torch.tensor(rows, device=tokens.device)
        owned = chosen[:, None].expand_as(tokens)[tokens]
        return owned, self.teachers[role].teacher_logits(batch.take(chosen.nonzero()[:, 0]))


def open_teacher(files: PolicyFiles, role: str, *, dtype: str) -> FrozenTeacher:
    """Return the teacher of a role, kept between steps."""

    def load() -> FrozenTeacher:
        model = load_model(files.weights, dtype=dtype).requires_grad_(requires_grad=False)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return FrozenTeacher(
            model=PolicyModel(model.to(device)), vocabulary_size=vocabulary_size(files)
        )

    return resident.borrow(role, files.digest, load)
