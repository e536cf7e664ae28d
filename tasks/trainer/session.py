"""What training keeps alive between steps, and where it comes from when it does not."""

from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor

from configs.run import RunConfig
from objectives.batch import TrajectoryBatch
from tasks.policy import resident
from tasks.policy.directory import load_model, save_weights
from tasks.policy.files import PolicyFiles
from tasks.trainer.policy import PolicyAdapter, PolicyModel
from tasks.trainer.state import TrainerState, load_state, save_state


@dataclass(kw_only=True)
class Session:
    """A policy ready to be trained.

    Attributes:
        module: the policy model as Accelerate prepared it.
        state: its optimizer and counters.
        accelerator: device, precision and ranks.
    """

    module: PolicyModel
    state: TrainerState
    accelerator: Accelerator

    @property
    def policy(self) -> PolicyAdapter:
        """The policy as an objective sees it."""
        return PolicyAdapter(self.module)

    @torch.no_grad()
    def score(self, batch: TrajectoryBatch, *, temperature: float) -> Tensor:
        """Return log-probabilities [B, T] (nats) of the response tokens, without a graph."""
        return self.policy.token_logprobs(batch, temperature=temperature).logprobs


def checkout(config: RunConfig, files: PolicyFiles) -> Session:
    """Return the live session that equals `files`, or one loaded from them, for this use alone."""
    session = resident.checkout("trainer", files.key, lambda: _load(config, files))
    resident.drop("policy")
    return session


def publish(session: Session, files: PolicyFiles, to: tuple[Path, Path]) -> PolicyFiles:
    """Write the updated policy into empty directories, and keep it live under its new digests."""
    weights, trainer_state = to
    written = PolicyFiles(
        version=files.version + 1,
        digest=save_weights(session.module.model, like=files.weights, to=weights),
        state_digest=save_state(session.state, session.module, trainer_state),
        weights=weights,
        trainer_state=trainer_state,
    )
    resident.publish("trainer", written.key, session)
    resident.publish("policy", written.digest, session.module.model)
    return written


def _load(config: RunConfig, files: PolicyFiles) -> Session:
    model = resident.checkout(
        "policy", files.digest, lambda: load_model(files.weights, dtype=config.model.dtype)
    )
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    module = accelerator.prepare_model(PolicyModel(model))
    return Session(
        module=module,
        state=load_state(files.trainer_state, module, config.trainer),
        accelerator=accelerator,
    )
