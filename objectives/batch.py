"""What an objective is given: a chunk of trajectories and a policy that scores it.

Shapes: `B` sequences, `S` prompt plus response positions, `T` response positions, `K` top-k.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Protocol

from torch import Tensor

from objectives.primitives.mapped import PerToken
from objectives.primitives.shapes import require_shape


class TokenLogprobs(NamedTuple):
    """What a policy says about the response tokens, in nats.

    Attributes:
        logprobs: [B, T] log-probability of each response token given its prefix.
        entropy: [B, T] entropy of the distribution it was drawn from, or None if not asked for.
    """

    logprobs: Tensor
    entropy: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class TrajectoryBatch:
    """A chunk of trajectories as tensors, one row per sample.

    A row of `input_ids` is the left-padded prompt followed by the right-padded response, so that
    the responses are the last `T` columns of `input_ids` and of `attention_mask`. Wherever
    `loss_mask` is 0, the per-token tensors may hold anything.

    Attributes:
        row_ids: [B] int64, unique within a collected batch.
        input_ids: [B, S] token ids.
        attention_mask: [B, S], 1 on tokens and 0 on padding.
        response_tokens: [B, T] token ids, right padded.
        loss_mask: [B, T], 1 on the tokens that train.
        token_counts: [B] number of tokens that train, `loss_mask.sum(1)`.
        advantages: [B], or [B, T] when each token has its own.
        engine_logprobs: [B, T] log-probabilities reported by the sampling engine, NaN where it
            reported none; or None.
        teacher_logprobs: [B, T] log-probabilities of the same tokens under the teacher; or None.
        teacher_topk_ids: [B, T, K] the teacher's most probable tokens; or None.
        teacher_topk_logprobs: [B, T, K] their log-probabilities; or None.
        routed_experts: [B, S, R] the experts that the sampler's routers chose, `K` for each layer
            of experts, -1 where the router is free to choose; or None.

    Raises:
        ValueError: naming the tensor whose shape disagrees with `response_tokens`.
    """

    row_ids: Tensor
    input_ids: Tensor
    attention_mask: Tensor
    response_tokens: Tensor
    loss_mask: Tensor
    token_counts: Tensor
    advantages: Tensor
    engine_logprobs: Tensor | None = None
    teacher_logprobs: Tensor | None = None
    teacher_topk_ids: Tensor | None = None
    teacher_topk_logprobs: Tensor | None = None
    routed_experts: Tensor | None = None

    def __post_init__(self) -> None:
        require_shape("response_tokens", self.response_tokens, (None, None))
        rows, width = self.response_tokens.shape
        require_shape("row_ids", self.row_ids, (rows,))
        require_shape("token_counts", self.token_counts, (rows,))
        require_shape("loss_mask", self.loss_mask, (rows, width))
        require_shape("input_ids", self.input_ids, (rows, None))
        require_shape("attention_mask", self.attention_mask, (rows, self.input_ids.shape[1]))
        if self.advantages.ndim != 1:
            require_shape("advantages", self.advantages, (rows, width))
        else:
            require_shape("advantages", self.advantages, (rows,))
        self._check_optional(rows, width)

    def _check_optional(self, rows: int, width: int) -> None:
        for name in ("engine_logprobs", "teacher_logprobs"):
            tensor: Tensor | None = getattr(self, name)
            if tensor is not None:
                require_shape(name, tensor, (rows, width))
        for name in ("teacher_topk_ids", "teacher_topk_logprobs"):
            tensor = getattr(self, name)
            if tensor is not None:
                require_shape(name, tensor, (rows, width, None))
        if self.routed_experts is not None:
            require_shape("routed_experts", self.routed_experts, (*self.input_ids.shape, None))

    @property
    def num_sequences(self) -> int:
        """Number of rows `B`, fully masked ones included."""
        return self.response_tokens.shape[0]

    @property
    def response_mask(self) -> Tensor:
        """[B, T], 1 on response tokens and 0 on their padding, whether they train or not."""
        start = self.attention_mask.shape[1] - self.response_tokens.shape[1]
        return self.attention_mask[:, start:]

    def unrouted(self) -> "TrajectoryBatch":
        """Return the batch for another model than the sampler's, whose routers choose freely."""
        return replace(self, routed_experts=None)

    def take(self, rows: Tensor) -> "TrajectoryBatch":
        """Return the batch of the given rows (int64 indices), at the same padded widths."""
        tensors: dict[str, Tensor | None] = {
            field.name: getattr(self, field.name) for field in fields(self)
        }
        chosen = {name: value[rows] for name, value in tensors.items() if value is not None}
        return replace(self, **chosen)


class PolicyAdapter(Protocol):
    """What an objective may ask of the model that is being trained."""

    def token_logprobs(
        self, batch: TrajectoryBatch, *, temperature: float, with_entropy: bool = False
    ) -> TokenLogprobs:
        """Score the response tokens, with logits divided by `temperature`; carries gradient."""
        ...

    def map_logits(self, batch: TrajectoryBatch, per_token: PerToken) -> Tensor:
        """Return what a function makes of each response token's logits [B, T, C]; carries gradient.

        The function gets the logits from which a few response tokens are drawn, and the numbers of
        these tokens among all of `batch.response_mask`, row by row. At padding the values are 0.
        """
        ...


class ReferenceScorer(Protocol):
    """A frozen reference as the objective sees it: scores only, never the network behind them."""

    def reference_logprobs(self, batch: TrajectoryBatch, *, temperature: float) -> Tensor:
        """Return [B, T] log-probabilities of the response tokens under the reference, in nats."""
        ...


class TeacherScorer(Protocol):
    """A frozen teacher as the objective sees it, where its whole distribution is needed."""

    def teacher_logits(self, batch: TrajectoryBatch) -> Callable[[Tensor], Tensor]:
        """Return a function from the numbers of response tokens [n] to the teacher's logits [n, V].

        Tokens are numbered as in `PolicyAdapter.map_logits`. `V` may be less than the student's.
        """
        ...
