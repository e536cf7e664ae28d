"""A policy on local disk: the plain counterpart of the handle that tasks pass."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class PolicyFiles:
    """Where a policy's files are and what they are the digest of.

    Attributes:
        version: updates that the policy has behind it.
        digest: of its weights.
        state_digest: of its trainer state; empty before the first update.
        weights: Hugging Face directory.
        trainer_state: directory of the optimizer's state.
    """

    version: int
    digest: str
    state_digest: str
    weights: Path
    trainer_state: Path

    @property
    def key(self) -> str:
        """Digest of everything that the next update depends on."""
        return f"{self.digest}:{self.state_digest}"
