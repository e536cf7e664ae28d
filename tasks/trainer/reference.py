"""The frozen reference policy that a KL penalty pulls towards."""

from dataclasses import dataclass

import torch
from torch import Tensor

from objectives.batch import TrajectoryBatch
from tasks.policy import resident
from tasks.policy.directory import load_model
from tasks.policy.files import PolicyFiles
from tasks.trainer.policy import PolicyAdapter, PolicyModel


@dataclass(frozen=True)
class FrozenReference:
    """Scores with a model that never trains.

    Attributes:
        policy: adapter over the reference; its parameters carry no gradient.
    """

    policy: PolicyAdapter

    @torch.no_grad()
    def reference_logprobs(self, batch: TrajectoryBatch, *, temperature: float) -> Tensor:
        """Return log-probabilities [B, T] of the response tokens under the reference, in nats."""
        return self.policy.token_logprobs(batch.unrouted(), temperature=temperature).logprobs


@dataclass(frozen=True)
class BaseReference:
    """Scores with the policy's own model, its adapter off: no second model is in memory.

    Attributes:
        policy: adapter over a policy that trains a LoRA.
    """

    policy: PolicyAdapter

    @torch.no_grad()
    def reference_logprobs(self, batch: TrajectoryBatch, *, temperature: float) -> Tensor:
        """Return log-probabilities [B, T] of the response tokens under the base, in nats."""
        from tasks.policy.adapter import adapter_off

        with adapter_off(self.policy.module):
            return self.policy.token_logprobs(batch.unrouted(), temperature=temperature).logprobs


def open_reference(files: PolicyFiles, *, dtype: str) -> FrozenReference:
    """Return the reference of a run, kept between steps; it is a model of its own, never shared."""

    def load() -> FrozenReference:
        model = load_model(files.weights, dtype=dtype).requires_grad_(requires_grad=False)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return FrozenReference(PolicyAdapter(PolicyModel(model.to(device))))

    return resident.borrow("reference", files.digest, load)
