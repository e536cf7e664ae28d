"""The policy adapter: what a loss may ask of a transformers model.

Dimensions: `B` sequences, `S` prompt plus response positions, `T` response positions, `N` response
tokens without padding, `H` hidden width, `V` vocabulary, `C` values of a token.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from objectives.batch import TokenLogprobs, TrajectoryBatch
from objectives.primitives.logprobs import selected_logprobs
from objectives.primitives.mapped import PerToken, map_logits
from tasks.policy.routing import replaying, routers_of
from tasks.trainer.capabilities import attention_scale, forward_noise, shares_prompts
from tasks.trainer.packing import attention_mask, pack
from tasks.trainer.recomputing import recomputing
from tasks.trainer.strategy import unwrapped

HEAD_TOLERANCE = 1e-3
"""Largest relative difference between a model's logits and its head applied to hidden states."""


class PolicyModel(nn.Module):
    """Scores response tokens; only their positions reach the vocabulary head.

    Attributes:
        model: the transformers model.
        attention_scale: what decides which rows share one copy of their prompt, see `split_packs`;
            0 where none does, as in models whose attention takes no mask of one's own.
        routers: those of a mixture of experts, which make the choices of `routed_experts` where a
            batch has them; None in a dense model.

    Raises:
        ValueError: when built, if the model's logits are not its head applied to its hidden states
            (scaled or capped logits): their log-probabilities would be of another distribution.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self._check_head()
        self.attention_scale = (
            attention_scale(model) if shares_prompts(model, self._hidden) else 0.0
        )
        self.routers = routers_of(model)

    def forward(
        self,
        batch: TrajectoryBatch,
        *,
        temperature: float = 1.0,
        with_entropy: bool = False,
        per_token: PerToken | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return log-probabilities and, if asked for, entropies [B, T] of the response tokens.

        With `per_token`, return what it makes of their logits [B, T, C] instead. It is an argument
        of `forward`, not a method of its own, so that a wrapped model still gathers its weights.
        """
        mask_BT = batch.response_mask.bool()
        hidden_NH = self.response_hidden(batch)
        if per_token is not None:
            values_NC = map_logits(hidden_NH, self.head.weight, per_token)
            return _scatter(values_NC, mask_BT), None
        scored = selected_logprobs(
            hidden_NH,
            self.head.weight,
            batch.response_tokens[mask_BT],
            temperature,
            with_entropy=with_entropy,
        )
        logprobs_N, entropy_N = scored if isinstance(scored, tuple) else (scored, None)
        entropy_BT = None if entropy_N is None else _scatter(entropy_N, mask_BT)
        return _scatter(logprobs_N, mask_BT), entropy_BT

    def response_hidden(self, batch: TrajectoryBatch) -> Tensor:
        """Return the hidden states [N, H] from which the response tokens are predicted."""
        if self.attention_scale and batch.num_sequences > 1:
            packed = pack(batch, attention_scale=self.attention_scale)
            if len(packed.input_ids) < batch.num_sequences:
                mask = attention_mask(packed.segments)
                with self._replaying(batch, packed.sources):
                    hidden_GLH = self._hidden(packed.input_ids, mask, packed.positions)
                return hidden_GLH.flatten(0, 1)[packed.predictors]
        mask_BT = batch.response_mask.bool()
        positions = (batch.attention_mask.cumsum(1) - 1).clamp(min=0)
        with self._replaying(batch):
            hidden_BSH = self._hidden(batch.input_ids, batch.attention_mask, positions)
        return hidden_BSH[:, -mask_BT.shape[1] - 1 : -1][mask_BT]

    @cached_property
    def head(self) -> nn.Module:
        """The vocabulary head."""
        return self.model.get_output_embeddings()

    def _replaying(
        self, batch: TrajectoryBatch, sources: Tensor | None = None
    ) -> AbstractContextManager[None]:
        """Let the routers choose what a batch says, for all its tokens or those at `sources`."""
        if batch.routed_experts is None:
            return nullcontext()
        if self.routers is None:
            raise ValueError(
                f"the rows have routed_experts, but {type(self.model).__name__} is no mixture of "
                "experts; another model has sampled them"
            )
        choices_NR = batch.routed_experts.flatten(0, 1)
        return replaying(
            self.routers, choices_NR if sources is None else choices_NR[sources.flatten()]
        )

    def _hidden(self, input_ids: Tensor, attention_mask: Tensor, positions: Tensor) -> Tensor:
        with recomputing(self.model):
            output = self.model.base_model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=positions,
                use_cache=False,
            )
        return output.last_hidden_state

    @torch.no_grad()
    def _check_head(self) -> None:
        probe = torch.arange(2, device=self.model.device)[None]
        logits = self.model(probe).logits
        hidden = self._hidden(probe, torch.ones_like(probe), positions=probe)
        ours = nn.functional.linear(hidden, self.head.weight)
        error = (ours - logits).abs().max() / logits.abs().max().clamp(min=HEAD_TOLERANCE)
        if not error <= HEAD_TOLERANCE:
            raise ValueError(
                f"{type(self.model).__name__} changes its logits after the vocabulary head "
                f"(relative difference {error.item():.2g}, expected at most {HEAD_TOLERANCE}); "
                "models with scaled, capped or biased logits cannot be trained"
            )


class PolicyAdapter:
    """Calls a `PolicyModel`, wrapped or not, the way the objective contract says."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @property
    def forward_noise(self) -> float:
        """Largest relative difference of two gradients of the model that rounding explains."""
        return forward_noise(unwrapped(self.module).model)

    def token_logprobs(
        self, batch: TrajectoryBatch, *, temperature: float, with_entropy: bool = False
    ) -> TokenLogprobs:
        """Return log-probabilities (nats) of the response tokens [B, T], 0 at padding."""
        return TokenLogprobs(
            *self.module(batch, temperature=temperature, with_entropy=with_entropy)
        )

    def map_logits(self, batch: TrajectoryBatch, per_token: PerToken) -> Tensor:
        """Return what a function makes of the response tokens' logits [B, T, C], 0 at padding."""
        return self.module(batch, per_token=per_token)[0]


def _scatter(values_N: Tensor, mask_BT: Tensor) -> Tensor:
    """Return [N, ...] values at their places in [B, T, ...]."""
    values = values_N.shape[1:]
    empty = torch.zeros((*mask_BT.shape, *values), dtype=values_N.dtype, device=values_N.device)
    mask = mask_BT.reshape(*mask_BT.shape, *(1 for _ in values)).expand_as(empty)
    return empty.masked_scatter(mask, values_N)
