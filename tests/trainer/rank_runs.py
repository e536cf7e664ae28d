"""The step on two gloo ranks; runs in a child process that forks them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from accelerate import Accelerator, debug_launcher
from torch import Tensor

from tasks.trainer.policy import PolicyAdapter, PolicyModel
from tests.trainer import losses
from tests.trainer.builders import learned_positions
from tests.trainer.step_runs import (
    NUM_TRAINING,
    Gradient,
    chunks_of,
    objective_of,
    sgd_update,
    step_gradient,
)

SHARES = {
    "unequal rows": ([[0, 1, 2, 3], [4, 5]], [[6], [7]]),
    "one rank fully masked": ([[0, 1, 2, 3], [4, 5, 6, 7]], [[8], [9]]),
}
assert all(
    {row for share in shares for part in share for row in part} >= set(range(NUM_TRAINING))
    for shares in SHARES.values()
)


def _gradients(accelerator: Accelerator, rank: int) -> dict[tuple[str, str], Gradient]:
    module = accelerator.prepare_model(PolicyModel(learned_positions().double()))
    policy = PolicyAdapter(module)
    objectives = {recipe: objective_of(recipe, "fp64") for recipe in losses.RECIPES}
    objectives["two terms"] = losses.custom(losses.two_terms)
    return {
        (recipe, name): step_gradient(
            policy, objective, chunks_of(shares[rank], torch.float64), accelerator
        )
        for recipe, objective in objectives.items()
        for name, shares in SHARES.items()
    }


def _moved(accelerator: Accelerator, rank: int) -> Tensor:
    share = SHARES["unequal rows"][rank]
    objective = losses.custom(losses.token_mean)
    return sgd_update(objective, share, accelerator, max_grad_norm=0.01)["moved"]


def _rank(directory: str) -> None:
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    rank = accelerator.process_index
    results = {"gradients": _gradients(accelerator, rank), "moved": _moved(accelerator, rank)}
    torch.save(results, Path(directory, f"{rank}.pt"))
    accelerator.end_training()


def compute() -> list[dict]:
    """Return the results of both ranks."""
    with TemporaryDirectory() as directory:
        debug_launcher(_rank, (directory,), num_processes=2)
        return [torch.load(Path(directory, f"{rank}.pt"), weights_only=False) for rank in (0, 1)]
