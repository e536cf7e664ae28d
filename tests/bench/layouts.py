"""What a backward pass over responses of very unequal length takes, by how rows are laid out.

python -m tests.bench.layouts [--quick]    (prints one JSON object)
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from configs.resolve import resolve
from configs.run import RunConfig
from objectives.batch import TrajectoryBatch
from tasks.policy.directory import load_model
from tasks.policy.start import initial_policy
from tasks.trainer.loop import build_objective
from tasks.trainer.packing import PADDING, pack, plan_rows
from tasks.trainer.policy import PolicyAdapter, PolicyModel
from tasks.trainer.rows import Rows, collate, plan_chunks
from tasks.trainer.step import gradients
from tests.bench.work import NUM_THREADS

NUM_GROUPS = 4
GROUP_SIZE = 8
PROMPT_TOKENS = 96
MEDIAN_TOKENS = 24
SPREAD = 1.0
MAX_TOKENS = 192
MAX_TOKENS_PER_CHUNK = 1536
VOCABULARY = 20
"""Token ids are drawn below this; every model has so many."""

NUM_TURNS = 2
TOLERANCE = 1e-3
"""Largest relative difference of two layouts' gradient norms: they do the same work."""

CPU = torch.device("cpu")


class Layout(NamedTuple):
    """How rows become chunks.

    Attributes:
        plan: from rows and the most padded tokens of a chunk to the rows of every chunk.
        shares: whether rows of a prompt share one copy of it.
    """

    plan: Callable[[Rows, int, float], list[np.ndarray]]
    shares: bool


class Pass(NamedTuple):
    """What one pass took, how much of it was padding, and the norm of its gradient."""

    seconds: float
    padding: float
    norm: float


def in_order(rows: Rows, max_tokens: int, _: float) -> list[np.ndarray]:
    """Cut rows into chunks as they come, each padded to the widest row of all."""
    size = max(1, max_tokens // int(rows.widths.max(0).sum()))
    return [np.arange(i, min(i + size, len(rows))) for i in range(0, len(rows), size)]


def by_length(rows: Rows, max_tokens: int, _: float) -> list[np.ndarray]:
    """Cut rows into chunks of like length."""
    return plan_chunks(rows.widths, np.arange(len(rows)), max_tokens=max_tokens)


def by_prompt(rows: Rows, max_tokens: int, attention_scale: float) -> list[np.ndarray]:
    """Cut rows into chunks of packs, a prompt's responses behind one copy of it."""
    return plan_rows(rows, np.arange(len(rows)), attention_scale, max_tokens=max_tokens)


LAYOUTS = {
    "padded": Layout(in_order, shares=False),
    "sorted": Layout(by_length, shares=False),
    "shared-prompt": Layout(by_prompt, shares=True),
}


def skewed_rows(num_groups: int, *, seed: int = 0) -> Rows:
    """Return groups that share a prompt, with responses of log-normal length."""
    rng = np.random.default_rng(seed)
    num_rows = num_groups * GROUP_SIZE
    lengths = rng.lognormal(np.log(MEDIAN_TOKENS), SPREAD, num_rows).astype(int)
    lengths = lengths.clip(1, MAX_TOKENS)
    prompts = [rng.integers(0, VOCABULARY, PROMPT_TOKENS) for _ in range(num_groups)]
    return Rows(
        ids=np.arange(num_rows),
        prompts=[prompt for prompt in prompts for _ in range(GROUP_SIZE)],
        responses=[rng.integers(0, VOCABULARY, length) for length in lengths],
        masks=[np.ones(length, bool) for length in lengths],
        advantages=rng.normal(size=num_rows).astype(np.float32),
        engine_logprobs=[np.zeros(length, np.float32) for length in lengths],
    )


def settings(root: str, *, quick: bool) -> RunConfig:
    """Return the config whose policy and objective the passes are of."""
    recipe = "grpo_arithmetic" if quick else "models/smollm2_gsm8k"
    words = ["algorithm=grpo", "job.name=bench", f"job.output_root={root}", "rl.mini_batches=1"]
    quick_words = ["model.embedded.warm_start_max_steps=0", "rollout.max_tokens=64"]
    return resolve(recipe, [*words, *(quick_words if quick else [])])


def load_policy(config: RunConfig) -> PolicyAdapter:
    """Return the untrained policy of a config."""
    files = initial_policy(
        config.model,
        config.data,
        seed=config.job.seed,
        output_root=Path(config.job.output_root),
    )
    return PolicyAdapter(PolicyModel(load_model(files.weights, dtype=config.model.dtype)))


def measure(config: RunConfig, rows: Rows) -> dict[str, list[Pass]]:
    """Return the passes of every layout, which take turns."""
    policy, objective = load_policy(config), build_objective(config)
    accelerator, scale = Accelerator(cpu=True), policy.module.attention_scale

    def one(chunks: list[TrajectoryBatch], attention_scale: float) -> Pass:
        policy.module.attention_scale = attention_scale
        used = [occupied(chunk, attention_scale) for chunk in chunks]
        started = time.perf_counter()
        gradients(policy, objective, chunks, accelerator)
        seconds = time.perf_counter() - started
        norm = torch.nn.utils.get_total_norm(p.grad for p in policy.module.parameters())
        policy.module.zero_grad(set_to_none=True)
        padding = 1 - float(sum(mask.sum() for mask in used)) / sum(map(torch.numel, used))
        return Pass(seconds, padding, norm.item())

    planned = {}
    for name, layout in LAYOUTS.items():
        chunks = layout.plan(rows, MAX_TOKENS_PER_CHUNK, scale)
        laid_out = [collate(rows, chunk, CPU) for chunk in chunks]
        planned[name] = (laid_out, scale if layout.shares else 0.0)
    one(planned["sorted"][0][-1:], 0.0)
    turns = [{name: one(*given) for name, given in planned.items()} for _ in range(NUM_TURNS)]
    return {name: [turn[name] for turn in turns] for name in planned}


def occupied(chunk: TrajectoryBatch, attention_scale: float) -> Tensor:
    """Return which positions of what the model is given hold a token."""
    if attention_scale:
        return pack(chunk, attention_scale=attention_scale).segments != PADDING
    return chunk.attention_mask


def require_same_work(passes: dict[str, list[Pass]]) -> None:
    """Refuse layouts that give another gradient.

    Raises:
        ValueError: naming the norms.
    """
    norms = {name: found[0].norm for name, found in passes.items()}
    if max(norms.values()) > min(norms.values()) * (1 + TOLERANCE):
        raise ValueError(f"layouts differ in the norm of their gradient: {norms}")


def main(*arguments: str) -> None:
    """Print seconds and padding by layout."""
    torch.set_num_threads(NUM_THREADS)
    quick = "--quick" in arguments
    with TemporaryDirectory() as root:
        passes = measure(settings(root, quick=quick), skewed_rows(1 if quick else NUM_GROUPS))
    require_same_work(passes)
    told = {
        name: {"seconds": median(p.seconds for p in found), "padding": found[0].padding}
        for name, found in passes.items()
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
