"""A whole run as one immutable value: the input of every task."""

from pydantic import Field

from configs.base import Section
from configs.data import Data
from configs.distillation import Teacher
from configs.evaluation import Evaluation
from configs.job import Job
from configs.model import Model
from configs.resources import Resources
from configs.reward import Reward
from configs.rl import Rl
from configs.rollout import Rollout
from configs.schedule import Schedule
from configs.tracking import Tracking
from configs.trainer import Trainer


class RunConfig(Section):
    """Everything that a run depends on."""

    algorithm: str = Field(pattern=r"^[a-z0-9][a-z0-9_]*$")
    """Name of the algorithm, for provenance; the mathematics is in `rl`."""

    job: Job
    """Name, place and seed."""

    model: Model = Model()
    """The policy before its first step."""

    teacher: Teacher = Teacher()
    """The model that is distilled, if any."""

    data: Data = Data()
    """Where prompts come from."""

    rollout: Rollout = Rollout()
    """How responses are sampled."""

    reward: Reward = Reward()
    """How a response is scored."""

    rl: Rl = Rl()
    """The objective and its schedule."""

    trainer: Trainer = Trainer()
    """Optimizer, memory and checkpoints kept."""

    evaluation: Evaluation = Evaluation()
    """Held-out accuracy."""

    tracking: Tracking = Tracking()
    """MLflow and decks."""

    resources: Resources = Resources()
    """Requests by role."""

    @property
    def directory(self) -> str:
        """Directory of the run, `<job.output_root>/<job.name>`."""
        return self.job.directory

    @property
    def schedule(self) -> Schedule:
        """When the run steps, saves and ends."""
        return self.rl

    @property
    def schedule_name(self) -> str:
        """Name of the section that `schedule` is, for messages."""
        return "rl"
