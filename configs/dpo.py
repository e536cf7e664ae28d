"""A run on preference pairs as one immutable value, and the sections that only it has."""

from typing import Literal

from pydantic import Field

from configs.base import Section
from configs.data import Data, PromptSource
from configs.job import Job
from configs.model import Model
from configs.resources import Resources
from configs.schedule import Schedule
from configs.tracking import Tracking
from configs.trainer import Trainer

PreferenceKind = Literal["sigmoid", "robust", "ipo", "hinge"]


class Preferences(PromptSource):
    """The source of prompts with a preferred and a rejected completion, and what fits."""

    chosen_field: str = "chosen"
    """Column of the `file` source with the preferred completion: text, or a chat ending in it."""

    rejected_field: str = "rejected"
    """Column of the `file` source with the rejected completion, in either form."""

    max_tokens: int = Field(default=1024, ge=2)
    """Most tokens of a prompt and a completion together. A longer completion is cut at its end; a
    pair whose prompt leaves no room for one token of it is left out and counted."""

    @property
    def problems(self) -> Data:
        """The additions that the embedded model is warm-started on, the same as in other runs."""
        return Data(digits=self.digits, seed=self.seed, num_held_out=self.num_held_out)


class Dpo(Schedule):
    """The preference loss and the schedule of updates."""

    pairs: Literal["text", "points"] = "text"
    """What is preferred: completions of a language model, or points of the embedded denoiser."""

    kind: PreferenceKind = "sigmoid"
    """Loss of a pair: `sigmoid` is DPO (arXiv:2305.18290), `robust` its unbiased form under swapped
    labels, `ipo` a square on per-token means, `hinge` is SLiC's."""

    beta: float = Field(default=0.1, gt=0.0)
    """Strength of the pull to the reference; a larger one keeps the policy closer."""

    label_smoothing: float = Field(default=0.0, ge=0.0, lt=0.5)
    """Assumed share of pairs whose labels are swapped; read by `sigmoid` and `robust`."""

    sft_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the chosen completion's negative log-likelihood per token, a mean over pairs."""

    pairs_per_step: int = Field(default=64, ge=1)
    """Pairs of one step."""

    epochs: int = Field(default=1, ge=1)
    """Passes over the training pairs; a remainder of less than one step is not trained on."""

    max_steps: int = Field(default=0, ge=0)
    """The run ends after so many steps if `epochs` does not end it earlier; 0: no such limit."""


class Denoiser(Section):
    """The embedded denoiser of 2-D points, trained locally on a ring: read with `pairs=points`."""

    hidden_size: int = Field(default=64, ge=4)
    """Width of its layers."""

    num_timesteps: int = Field(default=50, ge=2)
    """Steps of the noise schedule, in training and in sampling."""

    prediction: Literal["noise", "velocity"] = "noise"
    """What the network predicts."""

    warm_start_steps: int = Field(default=1500, ge=0)
    """Denoising steps before the run; 0: none."""

    num_pairs: int = Field(default=2048, ge=1)
    """Training pairs drawn from the ring; the point further to the right is preferred."""

    num_held_out: int = Field(default=512, ge=1)
    """Held-out pairs."""


class PairEvaluation(Section):
    """Measures on held-out pairs, which touch no training state."""

    every: int = Field(default=25, ge=0)
    """Steps between evaluations, beside those of the first and the last policy; 0: only those."""

    num_pairs: int = Field(default=500, ge=1)
    """Held-out pairs, taken in their fixed order, and points sampled from a denoiser."""


class DpoConfig(Section):
    """Everything that a run on preference pairs depends on."""

    algorithm: str = Field(pattern=r"^[a-z0-9][a-z0-9_]*$")
    """Name of the algorithm, for provenance; the mathematics is in `dpo`."""

    job: Job
    """Name, place and seed."""

    model: Model = Model()
    """The policy before its first step, which is the reference as well."""

    data: Preferences = Preferences()
    """Where pairs come from."""

    denoiser: Denoiser = Denoiser()
    """The policy in place of `model`, and its data, when points are preferred."""

    dpo: Dpo = Dpo()
    """The objective and its schedule."""

    trainer: Trainer = Trainer()
    """Optimizer, memory and checkpoints kept."""

    evaluation: PairEvaluation = PairEvaluation()
    """Held-out preferences."""

    tracking: Tracking = Tracking()
    """MLflow and decks."""

    resources: Resources = Resources()
    """Requests by role; the reference and evaluations take those of `rollout`."""

    @property
    def directory(self) -> str:
        """Directory of the run, `<job.output_root>/<job.name>`."""
        return self.job.directory

    @property
    def schedule(self) -> Schedule:
        """When the run steps, saves and ends."""
        return self.dpo

    @property
    def schedule_name(self) -> str:
        """Name of the section that `schedule` is, for messages."""
        return "dpo"


def with_steps(config: DpoConfig, num_pairs: int) -> DpoConfig:
    """Return the config with the number of steps that its pairs make, now that they are counted.

    Raises:
        ValueError: if the epochs do not fill a step.
    """
    steps = config.dpo.epochs * num_pairs // config.dpo.pairs_per_step
    if steps == 0:
        raise ValueError(
            f"dpo.pairs_per_step={config.dpo.pairs_per_step}: {num_pairs} training pairs in "
            f"dpo.epochs={config.dpo.epochs} do not fill one step; lower it or raise dpo.epochs"
        )
    settled = {"max_steps": min(steps, config.dpo.max_steps or steps)}
    return config.model_copy(update={"dpo": config.dpo.model_copy(update=settled)})
