"""What training keeps alive between steps, and where it comes from when it does not."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedModel

from configs.plan import AnyConfig
from configs.trainer import Trainer
from objectives.batch import TrajectoryBatch
from tasks.policy import resident
from tasks.policy.directory import load_model, save_weights
from tasks.policy.files import PolicyFiles
from tasks.trainer.policy import PolicyAdapter, PolicyModel
from tasks.trainer.recomputing import recompute_layers
from tasks.trainer.state import TrainerState, load_state, save_state
from tasks.trainer.strategy import spread, unwrapped


class Adapter(Protocol):
    """What an objective calls: it holds the module, and more that the objective knows of."""

    module: nn.Module

    @property
    def forward_noise(self) -> float:
        """Largest relative difference of two gradients of the model that rounding explains."""
        ...


class Network(NamedTuple):
    """What kind of model a policy is: how it is loaded, trained and called.

    Attributes:
        load: from a directory and a `dtype` to the model.
        wrap: from the model to the module that is spread over ranks; it keeps it as `model`.
        adapt: from that module, wrapped or not, to what an objective calls.
    """

    load: Callable[..., PreTrainedModel]
    wrap: Callable[[PreTrainedModel], nn.Module]
    adapt: Callable[[nn.Module], Adapter]


LANGUAGE_MODEL = Network(load_model, PolicyModel, PolicyAdapter)


@dataclass(kw_only=True)
class Session:
    """A policy ready to be trained.

    Attributes:
        module: the policy model, spread over the ranks.
        state: its optimizer and counters.
        accelerator: device, precision and ranks.
        network: what kind of model it is.
        trainer: how it is spread and laid out.
    """

    module: nn.Module
    state: TrainerState
    accelerator: Accelerator
    network: Network = LANGUAGE_MODEL
    trainer: Trainer = field(default_factory=Trainer)

    @property
    def attention_scale(self) -> float:
        """What decides which rows share one copy of their prompt; 0: none."""
        return getattr(unwrapped(self.module), "attention_scale", 0.0)

    @property
    def policy(self) -> Adapter:
        """The policy as an objective sees it."""
        return self.network.adapt(self.module)

    @torch.no_grad()
    def score(self, batch: TrajectoryBatch, *, temperature: float) -> Tensor:
        """Return log-probabilities [B, T] (nats) of the response tokens, without a graph."""
        return self.policy.token_logprobs(batch, temperature=temperature).logprobs


def checkout(config: AnyConfig, files: PolicyFiles, network: Network = LANGUAGE_MODEL) -> Session:
    """Return the live session that equals `files`, or one loaded from them, for this use alone."""
    key = _key(files, config.trainer)
    session = resident.checkout("trainer", key, lambda: _load(config, files, network))
    resident.drop("policy")
    return session


def frozen(network: Network, role: str, files: PolicyFiles, *, dtype: str) -> Adapter:
    """Return an adapter over a policy that is only asked for scores; it is kept for later tasks.

    Args:
        network: what kind of model it is.
        role: `policy` for the one in training, which its next step then takes over; any other role
            is frozen for good.
        files: where it is.
        dtype: type of its weights.
    """
    model = resident.borrow(role, files.digest, lambda: network.load(files.weights, dtype=dtype))
    if role != "policy":
        model.requires_grad_(requires_grad=False)
    return network.adapt(network.wrap(model.to(device())))


def device() -> torch.device:
    """Return where models are scored with."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def publish(session: Session, files: PolicyFiles, to: tuple[Path, Path]) -> PolicyFiles:
    """Write the updated policy into empty directories, and keep it live under its new digests."""
    weights, trainer_state = to
    module = unwrapped(session.module)
    written = PolicyFiles(
        version=files.version + 1,
        digest=save_weights(module.model, like=files.weights, to=weights),
        state_digest=save_state(session.state, module, trainer_state),
        weights=weights,
        trainer_state=trainer_state,
    )
    resident.publish("trainer", _key(written, session.trainer), session)
    if session.accelerator.num_processes == 1:
        resident.publish("policy", written.digest, module.model)
    return written


def _key(files: PolicyFiles, trainer: Trainer) -> str:
    return f"{files.key}:{trainer.strategy}:{trainer.share_prompts}"


def _load(config: AnyConfig, files: PolicyFiles, network: Network) -> Session:
    model = resident.checkout(
        "policy", files.digest, lambda: network.load(files.weights, dtype=config.model.dtype)
    )
    if config.trainer.gradient_checkpointing:
        recompute_layers(model)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    module = network.wrap(model)
    if isinstance(module, PolicyModel) and not config.trainer.share_prompts:
        module.attention_scale = 0.0
    module = spread(module, accelerator, config.trainer.strategy)
    return Session(
        module=module,
        state=load_state(files.trainer_state, unwrapped(module), config.trainer),
        accelerator=accelerator,
        network=network,
        trainer=config.trainer,
    )
