"""How each surrogate of `configs.surrogates` is computed from the knobs of the `rl` section.

Shapes: `B` sequences, `T` response positions.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from configs.rl import Rl
from objectives.primitives.diagnostics import surrogate_diagnostics
from objectives.primitives.policy_gradient import (
    cispo_loss,
    clipped_policy_gradient_loss,
    gmpo_loss,
    policy_gradient_loss,
    sapo_loss,
)


class SurrogateInputs(NamedTuple):
    """What every surrogate is computed from.

    Attributes:
        logprobs: [B, T] under the policy; carries gradient.
        old_logprobs: [B, T] under the frozen behaviour policy.
        advantages: [B] or [B, T].
        mask: [B, T], 1 on tokens that train.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    mask: Tensor


PerToken = tuple[Tensor, dict[str, Tensor]]


def _clipped(inputs: SurrogateInputs, rl: Rl) -> PerToken:
    return clipped_policy_gradient_loss(
        *inputs,
        epsilon_low=rl.epsilon_low,
        epsilon_high=rl.epsilon_high,
        lower_bound_ratio=rl.lower_bound_ratio,
        importance_sampling_level=rl.importance_sampling_level,
    )


def _cispo(inputs: SurrogateInputs, rl: Rl) -> PerToken:
    return cispo_loss(*inputs, epsilon_low=rl.epsilon_low, epsilon_high=rl.epsilon_high)


def _sapo(inputs: SurrogateInputs, rl: Rl) -> PerToken:
    return sapo_loss(
        *inputs,
        temperature_positive=rl.sapo_temperature_positive,
        temperature_negative=rl.sapo_temperature_negative,
    )


def _gmpo(inputs: SurrogateInputs, rl: Rl) -> PerToken:
    return gmpo_loss(*inputs, epsilon_low=rl.epsilon_low, epsilon_high=rl.epsilon_high)


def _plain(inputs: SurrogateInputs, _rl: Rl) -> PerToken:
    loss = policy_gradient_loss(inputs.logprobs, inputs.advantages, inputs.mask)
    return loss, surrogate_diagnostics(torch.zeros_like(loss))


class Surrogate(NamedTuple):
    """How a surrogate of `configs.surrogates` is computed.

    Attributes:
        loss: per-token loss and diagnostics from the inputs and its knobs.
        loss_type: the only reduction under which it is what its paper says, or None for any.
    """

    loss: Callable[[SurrogateInputs, Rl], PerToken]
    loss_type: str | None = None


SURROGATE_LOSSES: dict[str, Surrogate] = {
    "clipped": Surrogate(_clipped),
    "cispo": Surrogate(_cispo),
    "sapo": Surrogate(_sapo),
    "gmpo": Surrogate(_gmpo, loss_type="seq-mean-token-mean"),
    "legacy_pg": Surrogate(_plain),
}
"""The loss of every row of `configs.surrogates.SURROGATES`."""
