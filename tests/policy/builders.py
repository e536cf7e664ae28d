"""A small run and its untrained policy on disk."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from configs.data import Data
from configs.evaluation import Evaluation
from configs.job import Job
from configs.model import EmbeddedModel, Model
from configs.rl import Rl
from configs.rollout import Rollout
from configs.run import RunConfig
from configs.trainer import Trainer
from tasks.data.arithmetic import VOCABULARY
from tasks.data.schemas import PROMPTS
from tasks.policy.files import PolicyFiles
from tasks.policy.start import initial_policy
from tests.data.tables import build

UNTRAINED = EmbeddedModel(
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    intermediate_size=32,
    initializer_range=0.3,
    warm_start_max_steps=0,
)


def run_config(root: Path, **sections: dict) -> RunConfig:
    """Four prompts of one-digit additions, two samples each, unless a section says otherwise."""
    rollout = {"prompts_per_step": 4, "group_size": 2, "max_tokens": 5}
    return RunConfig(
        algorithm="grpo",
        job=Job(name="tiny", output_root=str(root), **sections.get("job", {})),
        model=Model(embedded=UNTRAINED, **sections.get("model", {})),
        data=Data(digits=1, num_held_out=20),
        rollout=Rollout(**{**rollout, **sections.get("rollout", {})}),
        rl=Rl(**{"max_steps": 4, **sections.get("rl", {})}),
        trainer=Trainer(**{"warmup_steps": 0, **sections.get("trainer", {})}),
        evaluation=Evaluation(**{"num_prompts": 20, **sections.get("evaluation", {})}),
    )


def open_policy(config: RunConfig) -> PolicyFiles:
    return initial_policy(
        config.model,
        config.data,
        seed=config.job.seed,
        output_root=Path(config.job.output_root),
    )


def problems(count: int, *, first: int = 0) -> pa.Table:
    """A PROMPTS table of one-digit additions; prompt `i` is problem and group `first + i`."""
    pairs = [divmod(first + index, 10) for index in range(count)]
    texts = [f"{left}+{right}=" for left, right in pairs]
    return build(
        PROMPTS,
        count,
        group_id=list(range(first, first + count)),
        prompt_id=texts,
        prompt_text=texts,
        prompt_tokens=[[VOCABULARY.index(symbol) for symbol in text] for text in texts],
        answer=[f"{left + right:02d}" for left, right in pairs],
    )


def copied_policy(policy: PolicyFiles, to: Path, *, generation: dict) -> PolicyFiles:
    """The same weights under a generation config with some more settings."""
    shutil.copytree(policy.weights, to / "weights")
    path = to / "weights" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **generation}))
    return replace(policy, weights=to / "weights")
