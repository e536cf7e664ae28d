"""One optimizer step cut in many ways; runs in a child process."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from objectives.batch import TrajectoryBatch
from objectives.objective import Objective, Reduction
from tasks.trainer.policy import PolicyAdapter, PolicyModel
from tasks.trainer.rows import Rows
from tasks.trainer.step import gradients, update
from tests.trainer import losses
from tests.trainer.builders import batch_of, learned_positions, make_rows, rotary

LENGTHS = ((4, 3), (2, 5), (6, 1), (3, 4), (5, 2), (2, 2), (3, 6), (4, 1), (2, 3), (5, 4))
NUM_TRAINING = 8
"""Rows 8 and 9 are fully masked."""

WHOLE = [list(range(NUM_TRAINING))]
PRECISIONS = {"fp32": (rotary, torch.float32), "fp64": (learned_positions, torch.float64)}


class Gradient(NamedTuple):
    """What one optimizer step saw."""

    flat: Tensor
    weight: float
    metrics: dict[str, float]


def rows() -> Rows:
    """Rows of which two train nothing and one trains all but its first two tokens."""
    made = make_rows(LENGTHS, masked=(8, 9))
    made.masks[1][:2] = False
    return made


def splits() -> dict[str, list[list[int]]]:
    rng = np.random.default_rng(0)
    order = rng.permutation(NUM_TRAINING)
    cut = {
        f"random {i}": [
            part.tolist() for part in np.split(rng.permutation(NUM_TRAINING), sorted(cuts))
        ]
        for i, cuts in enumerate([[3], [2, 5], [1, 4, 6]])
    }
    return {
        "whole": WHOLE,
        "each row alone": [[row] for row in range(NUM_TRAINING)],
        "rows shuffled": [order.tolist()],
        "masked rows inside and alone": [[0, 8, 1, 2], [9], [3, 4, 5, 6, 7]],
        **cut,
    }


def flat_gradient(policy: PolicyAdapter) -> Tensor:
    return torch.cat([p.grad.flatten().clone() for p in policy.module.parameters()])


def converted(batch: TrajectoryBatch, dtype: torch.dtype) -> TrajectoryBatch:
    assert batch.engine_logprobs is not None
    return replace(
        batch,
        advantages=batch.advantages.to(dtype),
        engine_logprobs=batch.engine_logprobs.to(dtype),
    )


def chunks_of(parts: Sequence[Sequence[int]], dtype: torch.dtype) -> list[TrajectoryBatch]:
    return [converted(batch_of(rows(), part), dtype) for part in parts]


def objective_of(recipe: str, precision: str) -> Objective:
    build, dtype = PRECISIONS[precision]
    behaviour = PolicyAdapter(PolicyModel(build(5).to(dtype)))
    (everything,) = chunks_of([range(len(LENGTHS))], dtype)
    return losses.built_in(recipe, behaviour=behaviour, everything=everything)


def step_gradient(
    policy: PolicyAdapter,
    objective: Objective,
    chunks: list[TrajectoryBatch],
    accelerator: Accelerator,
) -> Gradient:
    policy.module.zero_grad(set_to_none=True)
    weight, _, metrics = gradients(policy, objective, chunks, accelerator)
    values = {name: metric.value for name, metric in metrics.items()}
    return Gradient(flat_gradient(policy), weight, values)


def direct_gradient(policy: PolicyAdapter, objective: Objective, batch: TrajectoryBatch) -> Tensor:
    """The gradient of the loss over one batch, by autograd alone."""
    policy.module.zero_grad(set_to_none=True)
    objective.fn(policy, batch)[0].backward()
    return flat_gradient(policy)


def _recipe_gradients(accelerator: Accelerator) -> dict[tuple[str, str], dict]:
    found = {}
    for precision, (build, dtype) in PRECISIONS.items():
        policy = PolicyAdapter(PolicyModel(build(0).to(dtype)))
        for recipe in losses.RECIPES:
            objective = objective_of(recipe, precision)
            (whole,) = chunks_of(WHOLE, dtype)
            found[precision, recipe] = {
                "direct": direct_gradient(policy, objective, whole),
                **{
                    name: step_gradient(policy, objective, chunks_of(parts, dtype), accelerator)
                    for name, parts in splits().items()
                },
            }
    return found


def _custom_gradients(accelerator: Accelerator) -> dict[str, dict[str, Gradient]]:
    policy = PolicyAdapter(PolicyModel(learned_positions().double()))
    named = {
        "two terms": losses.custom(losses.two_terms),
        "mean": losses.custom(losses.mean_over_sequences, Reduction.MEAN),
    }
    return {
        name: {
            split: step_gradient(policy, objective, chunks_of(parts, torch.float64), accelerator)
            for split, parts in splits().items()
        }
        for name, objective in named.items()
    }


def _two_terms_directly() -> Tensor:
    policy = PolicyAdapter(PolicyModel(learned_positions().double()))
    (whole,) = chunks_of(WHOLE, torch.float64)
    terms, _ = losses.two_terms(policy, whole)
    sum(term.numerator / term.weight for term in terms).backward()
    return flat_gradient(policy)


def sgd_update(
    objective: Objective,
    parts: Sequence[Sequence[int]],
    accelerator: Accelerator,
    *,
    max_grad_norm: float = 0.0,
) -> dict:
    """One update by plain gradient descent at rate 1: the weights move by minus the gradient."""
    model = learned_positions().double()
    before = copy.deepcopy(model.state_dict())
    policy = PolicyAdapter(accelerator.prepare_model(PolicyModel(model)))
    optimizer = torch.optim.SGD(policy.module.parameters(), lr=1.0)
    chunks = chunks_of(parts, torch.float64)
    raised, done = "", None
    try:
        done = update(
            policy, objective, chunks, optimizer, accelerator, max_grad_norm=max_grad_norm
        )
    except FloatingPointError as error:
        raised = str(error)
    moved = {name: model.state_dict()[name] - value for name, value in before.items()}
    return {
        "moved": torch.cat([moved[name].flatten() for name, _ in model.named_parameters()]),
        "grads_left": any(p.grad is not None for p in policy.module.parameters()),
        "raised": raised,
        "applied": done and done.applied,
        "weight": done and done.weight,
        "grad_norm": done and done.grad_norm,
    }


def _updates(accelerator: Accelerator) -> dict[str, dict]:
    token_mean = losses.custom(losses.token_mean)
    return {
        "plain": sgd_update(token_mean, WHOLE, accelerator),
        "clipped": sgd_update(token_mean, WHOLE, accelerator, max_grad_norm=0.01),
        "below the clip": sgd_update(token_mean, WHOLE, accelerator, max_grad_norm=1e6),
        "all masked": sgd_update(token_mean, [[8], [9]], accelerator),
        "infinite": sgd_update(losses.custom(losses.infinite), WHOLE, accelerator),
        "not a number": sgd_update(losses.custom(losses.not_a_number), WHOLE, accelerator),
    }


def compute() -> dict:
    accelerator = Accelerator(cpu=True)
    return {
        "recipes": _recipe_gradients(accelerator),
        "custom": _custom_gradients(accelerator),
        "two terms directly": _two_terms_directly(),
        "updates": _updates(accelerator),
    }
