"""The reduction proof on right and wrong objectives; runs in a child process."""

import torch
from accelerate import Accelerator

from objectives.objective import Objective, Reduction
from tasks.trainer.policy import PolicyAdapter, PolicyModel
from tasks.trainer.proofs import prove_reduction, stagger
from tests.trainer import losses
from tests.trainer.builders import learned_positions, rotary
from tests.trainer.step_runs import chunks_of, objective_of

PROOF_ROWS = [0, 1, 3, 6]


def _prove(objective: Objective, precision: str, accelerator: Accelerator) -> float | str:
    dtype = torch.float32 if precision == "fp32" else torch.float64
    model = rotary() if precision == "fp32" else learned_positions().double()
    policy = PolicyAdapter(PolicyModel(model))
    (batch,) = chunks_of([PROOF_ROWS], dtype)
    try:
        difference = prove_reduction(policy, objective, stagger(batch), accelerator)
    except ValueError as error:
        return str(error)
    assert all(parameter.grad is None for parameter in model.parameters())
    return difference


def compute() -> dict:
    accelerator = Accelerator(cpu=True)
    wrong = {
        "sequences as tokens": losses.custom(losses.sequences_as_tokens),
        "weight of another mask": losses.custom(losses.weight_of_another_mask),
        "small and wrong": losses.custom(losses.small_and_wrong),
        "tokens under MEAN": losses.custom(losses.token_mean, Reduction.MEAN),
    }
    right = {
        "token mean": losses.custom(losses.token_mean),
        "two terms": losses.custom(losses.two_terms),
        "rounding alone": losses.custom(losses.rounding_alone),
        "mean": losses.custom(losses.mean_over_sequences, Reduction.MEAN),
    }
    return {
        precision: {
            **{
                recipe: _prove(objective_of(recipe, precision), precision, accelerator)
                for recipe in losses.RECIPES
            },
            **{
                name: _prove(objective, precision, accelerator)
                for name, objective in {**wrong, **right}.items()
            },
        }
        for precision in ("fp32", "fp64")
    }
