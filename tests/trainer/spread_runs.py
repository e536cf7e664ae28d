"""The same steps on one process, and on two and four ranks under both strategies.

Runs in a child process, which is the one process; the ranks are its children.
"""

import copy
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from configs.run import RunConfig
from objectives.batch import TrajectoryBatch
from objectives.objective import Objective
from tasks.policy import resident
from tasks.policy.directory import WEIGHTS_FILE
from tasks.policy.files import PolicyFiles
from tasks.policy.whole import part_of, whole
from tasks.trainer import ranks
from tasks.trainer.launch import join, launch
from tasks.trainer.policy import PolicyAdapter, PolicyModel
from tasks.trainer.rows import plan_chunks
from tasks.trainer.shares import Share, plan_share
from tasks.trainer.state import MOMENTS_FILE
from tasks.trainer.step import gradients, update
from tasks.trainer.strategy import spread, unwrapped
from tasks.trainer.updates import Trained
from tests.policy.builders import open_policy, run_config
from tests.trainer import losses
from tests.trainer.builders import learned_positions
from tests.trainer.loop_runs import annotated, forget, place, replaced
from tests.trainer.step_runs import Gradient, chunks_of, objective_of, rows

SPREADS = [(2, "ddp"), (2, "fsdp2"), (4, "ddp"), (4, "fsdp2")]
TIMEOUT_S = 120.0
PICKED = {"eight rows": list(range(8)), "three rows": [0, 1, 2], "one row that trains": [1, 8, 9]}
RECIPES = ["clipped token-mean", "clipped seq-mean-token-sum-fixed", "kl and entropy", "two terms"]


def _objective(recipe: str) -> Objective:
    if recipe == "two terms":
        return losses.custom(losses.two_terms)
    return objective_of(recipe, "fp64")


def _share(accelerator: Accelerator, picked: list[int]) -> Share:
    widths = rows().widths
    planned = plan_share(
        widths,
        torch.tensor(picked).numpy(),
        rank=accelerator.process_index,
        num_ranks=accelerator.num_processes,
        plan=lambda part: plan_chunks(widths, part, max_tokens=20),
    )
    return planned.each(lambda chunk: chunks_of([chunk], torch.float64)[0])


def _module(accelerator: Accelerator, strategy: str) -> nn.Module:
    return spread(PolicyModel(learned_positions().double()), accelerator, strategy)


def _values(module: nn.Module) -> dict[str, Tensor]:
    return whole({name: p.detach() for name, p in module.named_parameters()})


def _flat(tensors: dict[str, Tensor]) -> Tensor:
    found = whole(tensors)
    return torch.cat([value.flatten() for value in found.values()]) if found else torch.empty(0)


def spread_gradients(strategy: str) -> dict[tuple[str, str], Gradient]:
    """The gradient of every recipe over every choice of rows, this rank doing its share."""
    accelerator = _joined()
    policy = PolicyAdapter(_module(accelerator, strategy))
    found = {}
    for recipe in RECIPES:
        for name, picked in PICKED.items():
            policy.module.zero_grad(set_to_none=True)
            share = _share(accelerator, picked)
            weight, _, metrics = gradients(
                policy, _objective(recipe), share.own, accelerator, idle=share.idle
            )
            flat = _flat({n: p.grad for n, p in unwrapped(policy.module).named_parameters()})
            found[recipe, name] = Gradient(flat, weight, {n: m.value for n, m in metrics.items()})
    return found


def _infinite_for_row_zero(model: PolicyAdapter, batch: TrajectoryBatch) -> tuple:
    loss, metrics = losses.token_mean(model, batch)
    return loss * (torch.inf if rows().ids[0] in batch.row_ids else 1.0), metrics


def spread_updates(strategy: str) -> dict[str, Any]:
    """What an update by gradient descent does: one that is clipped, one that is not finite."""
    accelerator = _joined()
    done: dict[str, Any] = {}
    for name, loss in {"clipped": losses.token_mean, "infinite": _infinite_for_row_zero}.items():
        policy = PolicyAdapter(_module(accelerator, strategy))
        module, share = unwrapped(policy.module), _share(accelerator, PICKED["eight rows"])
        before = copy.deepcopy(_values(module))
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        raised = 0
        try:
            taken = update(
                policy,
                losses.custom(loss),
                share.own,
                optimizer,
                accelerator,
                max_grad_norm=0.01,
                idle=share.idle,
            )
            done["grad_norm"] = taken.grad_norm
        except FloatingPointError:
            raised = 1
        after = _values(module)
        done[name] = _flat({n: after[n] - before[n] for n in after})
        done[f"{name} raised"] = int(accelerator.reduce(torch.tensor(raised)).item())
    return done


def _joined() -> Accelerator:
    if ranks.STORE in os.environ:
        join(timeout_s=TIMEOUT_S)
    return Accelerator(cpu=True)


def held() -> dict[str, Any]:
    """What a rank keeps of a policy after a step."""
    key, session = resident._live["trainer"]
    parameters = list(session.module.parameters())
    state = session.state.optimizer.state
    return {
        "key": key,
        "kinds": {type(p.data).__name__ for p in parameters},
        "moments": {type(state[p]["exp_avg"]).__name__ for p in parameters},
        "share": sum(part_of(p).numel() for p in parameters) / sum(p.numel() for p in parameters),
        "sharded": all(isinstance(p, DTensor) for p in parameters),
    }


def _config(root: Path, num_ranks: int, strategy: str, **rl: object) -> RunConfig:
    """Weights move smoothly with the gradient, so that rounding stays rounding."""
    several = {"num_processes": num_ranks, "strategy": strategy, "rank_timeout_s": TIMEOUT_S}
    trainer = {"max_tokens_per_chunk": 24, "adam_epsilon": 1e-3}
    return run_config(root, rl=rl, trainer={**trainer, **(several if num_ranks > 1 else {})})


def _step(
    config: RunConfig,
    root: Path,
    name: str,
    table: pa.Table,
    policy: PolicyFiles,
    first: PolicyFiles,
) -> Trained:
    table = replaced(table, "policy_version", [policy.version] * len(table))
    table = replaced(table, "policy_digest", [policy.digest] * len(table))
    to, others = place(root, name), {"reference": first}
    return launch("tasks.trainer.loop:train", config, table, policy, to, others)


def _tensors(trained: Trained) -> dict[str, Tensor]:
    files = trained.policy
    weights, moments = files.weights / WEIGHTS_FILE, files.trainer_state / MOMENTS_FILE
    return {**load_file(weights), **load_file(moments)}


CASES = {
    "clipped with KL": {"mini_batches": 2, "kl_beta": 0.1},
    "fixed length": {"mini_batches": 2, "loss_type": "seq-mean-token-sum-fixed"},
    "three rows that train": {"mini_batches": 2},
    "certified": {"certified_deterministic_forward": True, "mini_batches": 2},
}


class Runs:
    """Steps below one directory, all from one policy and one table."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.first = open_policy(run_config(root))
        self.table = annotated(run_config(root), self.first, 0)

    def cases(self, num_ranks: int, strategy: str) -> dict[str, tuple[dict, dict]]:
        """Metrics and written tensors of a step of every case."""
        masks = self.table["loss_mask"].to_pylist()
        few = [[row in {0, 1, 6}] * len(mask) for row, mask in enumerate(masks)]
        found = {}
        for name, rl in CASES.items():
            config = _config(self.root, num_ranks, strategy, **rl)
            table = replaced(self.table, "loss_mask", few) if "three" in name else self.table
            unique = f"{name} {num_ranks} {strategy}"
            done = _step(config, self.root, unique, table, self.first, self.first)
            found[name] = done.metrics, _tensors(done)
        return found

    def chain(self, name: str, spreads: list[tuple[int, str]], *, forgetful: bool) -> list[Trained]:
        """Steps one after the other, each on ranks of its own kind."""
        policy, done = self.first, []
        for number, spread_over in enumerate(spreads):
            if forgetful:
                ranks.call("tests.trainer.loop_runs:forget", num_ranks=2, timeout_s=TIMEOUT_S)
            config = _config(self.root, *spread_over, mini_batches=2)
            unique = f"{name}-{number}"
            done.append(_step(config, self.root, unique, self.table, policy, self.first))
            policy = done[-1].policy
        return done


def _held() -> dict[str, Any]:
    return ranks.call("tests.trainer.spread_runs:held", num_ranks=2, timeout_s=TIMEOUT_S)


def _on_two(runs: Runs) -> dict[str, Any]:
    """What needs two ranks beside what four are asked as well."""
    live = {
        strategy: runs.chain(f"live {strategy}", [(2, strategy)] * 2, forgetful=False)
        for strategy in ("ddp", "fsdp2")
    }
    sharded = _held()
    cold = {
        strategy: runs.chain(f"cold {strategy}", [(2, strategy)] * 2, forgetful=True)
        for strategy in ("fsdp2", "ddp")
    }
    mixed = [(1, "ddp"), (2, "ddp"), (2, "fsdp2"), (1, "ddp")]
    return {
        "live": live,
        "cold": cold,
        "held under fsdp2": sharded,
        "held under ddp": _held(),
        "mixed": _tensors(runs.chain("mixed", mixed, forgetful=True)[-1]),
    }


def compute() -> dict[str, Any]:
    with TemporaryDirectory() as directory:
        runs = Runs(Path(directory))
        forget()
        found: dict[str, Any] = {
            "gradients": {(1, "ddp"): spread_gradients("ddp")},
            "updates": {(1, "ddp"): spread_updates("ddp")},
            "steps": {(1, "ddp"): runs.cases(1, "ddp")},
            "alone": _tensors(runs.chain("alone", [(1, "ddp")] * 4, forgetful=False)[-1]),
        }
        for num_ranks, strategy in SPREADS:
            for part in ("gradients", "updates"):
                target = f"tests.trainer.spread_runs:spread_{part}"
                found[part][num_ranks, strategy] = ranks.call(
                    target, strategy, num_ranks=num_ranks, timeout_s=TIMEOUT_S
                )
            found["steps"][num_ranks, strategy] = runs.cases(num_ranks, strategy)
            if (num_ranks, strategy) == (2, "fsdp2"):
                found |= _on_two(runs)
        ranks.close()
        return found
