"""The policy adapter: what a loss may ask of a transformers model.

Dimensions: `B` sequences, `S` prompt plus response positions, `T` response positions, `N` response
tokens without padding, `H` hidden width, `V` vocabulary.
"""

from functools import cached_property

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from objectives.batch import TokenLogprobs, TrajectoryBatch
from objectives.primitives.logprobs import selected_logprobs

HEAD_TOLERANCE = 1e-3
"""Largest relative difference between a model's logits and its head applied to hidden states."""


class PolicyModel(nn.Module):
    """Scores response tokens; only their positions reach the vocabulary head.

    Raises:
        ValueError: when built, if the model's logits are not its head applied to its hidden states
            (scaled or capped logits): their log-probabilities would be of another distribution.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self._check_head()

    def forward(
        self, batch: TrajectoryBatch, *, temperature: float, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return log-probabilities and, if asked for, entropies [B, T] of the response tokens."""
        mask_BT = batch.response_mask.bool()
        width = mask_BT.shape[1]
        hidden_BSH = self._hidden(batch.input_ids, batch.attention_mask)
        hidden_NH = hidden_BSH[:, -width - 1 : -1][mask_BT]
        scored = selected_logprobs(
            hidden_NH,
            self._head.weight,
            batch.response_tokens[mask_BT],
            temperature,
            with_entropy=with_entropy,
        )
        logprobs_N, entropy_N = scored if isinstance(scored, tuple) else (scored, None)
        entropy_BT = None if entropy_N is None else _scatter(entropy_N, mask_BT)
        return _scatter(logprobs_N, mask_BT), entropy_BT

    @cached_property
    def _head(self) -> nn.Module:
        return self.model.get_output_embeddings()

    def _hidden(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
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
        ours = nn.functional.linear(self._hidden(probe, torch.ones_like(probe)), self._head.weight)
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

    def token_logprobs(
        self, batch: TrajectoryBatch, *, temperature: float, with_entropy: bool = False
    ) -> TokenLogprobs:
        """Return log-probabilities (nats) of the response tokens [B, T], 0 at padding."""
        return TokenLogprobs(
            *self.module(batch, temperature=temperature, with_entropy=with_entropy)
        )


def _scatter(values_N: Tensor, mask_BT: Tensor) -> Tensor:
    empty = torch.zeros(mask_BT.shape, dtype=values_N.dtype, device=values_N.device)
    return empty.masked_scatter(mask_BT, values_N)
