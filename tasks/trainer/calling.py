"""What an objective returns, checked before anything is made of it."""

from collections.abc import Mapping

from torch import Tensor

from objectives.batch import TrajectoryBatch
from objectives.metrics import Metric
from objectives.objective import Loss, Objective
from tasks.trainer.policy import PolicyAdapter


def returned_by(
    objective: Objective, policy: PolicyAdapter, chunk: TrajectoryBatch
) -> tuple[Loss, Mapping[str, Metric]]:
    """Return the loss of a chunk and its metrics.

    Raises:
        TypeError: the objective returned something else.
        ValueError: the loss has no gradient.
    """
    match objective.fn(policy, chunk):
        case (loss, Mapping() as metrics):
            _check_loss(loss)
            return loss, metrics
        case other:
            raise TypeError(
                f"the objective returned {other!r:.80}, expected (loss, metrics): a scalar tensor "
                "or a tuple of terms, and a mapping of metrics by name; rl.builder owns this code"
            )


def _check_loss(loss: object) -> None:
    parts = [term.numerator for term in loss] if isinstance(loss, tuple) else [loss]
    if not all(isinstance(part, Tensor) for part in parts):
        raise TypeError(
            f"the objective's loss is {loss!r:.80}, expected a scalar tensor or a tuple of terms; "
            "rl.builder owns this code"
        )
    if not all(part.requires_grad for part in parts):
        raise ValueError(
            "the objective's loss has no gradient: compute it from what the model returns, without "
            "detach or item, also where no token trains; rl.builder owns this code"
        )
