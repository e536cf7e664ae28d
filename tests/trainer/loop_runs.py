"""Whole training steps from directory to directory; runs in a child process."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import torch

from configs.run import RunConfig
from tasks.annotators.annotate import annotate
from tasks.policy import resident
from tasks.policy.directory import load_model, weights_digest
from tasks.policy.files import PolicyFiles
from tasks.rewards.score import score
from tasks.sampling.rollout import rollout
from tasks.trainer.loop import Trained, train
from tasks.trainer.state import COUNTERS_FILE, state_digest
from tests.policy.builders import open_policy, problems, run_config

ALTERNATING = [1.0, -1.0] * 4
KINDS = ("policy", "trainer", "tokenizer", "reference", "behaviour", "proved")


def forget() -> None:
    """Do what the end of a process does: nothing stays live."""
    for kind in KINDS:
        resident.drop(kind)


def replaced(table: pa.Table, name: str, values: list) -> pa.Table:
    index = table.schema.get_field_index(name)
    field = table.schema.field(name)
    return table.set_column(index, field, pa.array(values, field.type))


def annotated(config: RunConfig, files: PolicyFiles, step: int) -> pa.Table:
    """The rollouts of a step with advantages that push every group apart."""
    table = rollout(config, step, problems(4, first=4 * step), files)
    return replaced(annotate(score(table, config.reward), config.rl), "advantage", ALTERNATING)


def place(root: Path, name: str) -> tuple[Path, Path]:
    weights, state = root / name / "weights", root / name / "trainer_state"
    weights.mkdir(parents=True)
    state.mkdir()
    return weights, state


def step(config: RunConfig, root: Path, name: str, table: pa.Table, files: PolicyFiles) -> Trained:
    return train(config, table, files, place(root, name))


def refusal(config: RunConfig, root: Path, name: str, table: pa.Table, files: PolicyFiles) -> str:
    try:
        step(config, root, name, table, files)
    except ValueError as error:
        return str(error)
    return ""


def _two_steps(config: RunConfig, root: Path, name: str, *, forgetful: bool) -> list[Trained]:
    forget()
    policy, done = open_policy(config), []
    for number in range(2):
        table = annotated(config, policy, number)
        if forgetful:
            forget()
        done.append(step(config, root, f"{name}-{number}", table, policy))
        policy = done[-1].policy
    return done


def _written(trained: Trained) -> dict:
    files = trained.policy
    live = resident.borrow("policy", files.digest, lambda: None)
    loaded = load_model(files.weights, dtype="float32")
    return {
        "digests": (weights_digest(files.weights), state_digest(files.trainer_state)),
        "live": all(
            torch.equal(live.state_dict()[name], value)
            for name, value in loaded.state_dict().items()
        ),
        "counters": json.loads((files.trainer_state / COUNTERS_FILE).read_text())["num_updates"],
    }


def _knobs(root: Path) -> dict[str, Trained]:
    """One step of the same rows under other settings."""
    plain = run_config(root)
    policy = open_policy(plain)
    table = annotated(plain, policy, 0)
    masked = replaced(table, "loss_mask", [[False] * len(m) for m in mask_lists(table)])
    half = replaced(
        table,
        "loss_mask",
        [[row < 4] * len(mask) for row, mask in enumerate(mask_lists(table))],
    )
    named = {
        "one mini-batch": (plain, table),
        "two mini-batches": (run_config(root, rl={"mini_batches": 2}), table),
        "small chunks": (run_config(root, trainer={"max_tokens_per_chunk": 12}), table),
        "all masked": (plain, masked),
        "half masked": (plain, half),
        "half masked, two mini-batches": (run_config(root, rl={"mini_batches": 2}), half),
        "warming up": (run_config(root, trainer={"warmup_steps": 4}), table),
        "certified": (run_config(root, rl={"certified_deterministic_forward": True}), table),
    }
    found = {}
    for name, (config, rows) in named.items():
        forget()
        found[name] = step(config, root, name, rows, policy)
    return found


def mask_lists(table: pa.Table) -> list[list[bool]]:
    return table["loss_mask"].to_pylist()


def largest_move(before: PolicyFiles, after: PolicyFiles) -> float:
    """The first step of AdamW moves a weight by the learning rate, whatever its gradient."""
    old, new = (load_model(files.weights, dtype="float32") for files in (before, after))
    pairs = zip(old.parameters(), new.parameters(), strict=True)
    return max((b - a).abs().max().item() for a, b in pairs)


def _refusals(root: Path) -> dict[str, str]:
    config = run_config(root)
    policy = open_policy(config)
    table = annotated(config, policy, 0)
    broken = run_config(root, rl={"builder": "tests.trainer.losses:build_sequences_as_tokens"})
    unproved = run_config(
        root,
        rl={"builder": "tests.trainer.losses:build_sequences_as_tokens"},
        trainer={"prove_reduction": False},
    )
    forget()
    return {
        "version": refusal(
            config, root, "version", replaced(table, "policy_version", [3] * 8), policy
        ),
        "digest": refusal(
            config, root, "digest", replaced(table, "policy_digest", ["x"] * 8), policy
        ),
        "wrong weight": refusal(broken, root, "wrong weight", table, policy),
        "wrong weight, unproved": refusal(unproved, root, "unproved", table, policy),
        "uneven mini-batches": refusal(
            run_config(root, rl={"mini_batches": 3}), root, "uneven", table, policy
        ),
    }


def compute() -> dict:
    with TemporaryDirectory() as directory:
        root = Path(directory)
        config = run_config(root)
        first = open_policy(config)
        live = _two_steps(config, root, "live", forgetful=False)
        written = _written(live[1])
        cold = _two_steps(config, root, "cold", forgetful=True)
        before = torch.get_rng_state(), np.random.get_state()[1].copy()
        knobs = _knobs(root)
        return {
            "initial": first,
            "live": live,
            "cold": cold,
            "written": written,
            "knobs": knobs,
            "moves": {
                name: largest_move(first, knobs[name].policy)
                for name in ("one mini-batch", "warming up")
            },
            "rng untouched": torch.equal(before[0], torch.get_rng_state())
            and np.array_equal(before[1], np.random.get_state()[1]),
            "refusals": _refusals(root),
        }
