"""What a training step costs on one process and on two, each with one thread."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from configs.model import EmbeddedModel, Model
from configs.run import RunConfig
from tasks.policy.files import PolicyFiles
from tasks.trainer import ranks
from tasks.trainer.launch import launch
from tests.policy.builders import open_policy, run_config
from tests.trainer.loop_runs import annotated, place, replaced

COPIES = 64
"""Of eight rows: a batch of 512 responses."""

NUM_STEPS = 5
LARGER = EmbeddedModel(
    hidden_size=256, num_layers=4, num_heads=4, intermediate_size=1024, warm_start_max_steps=0
)
SPREADS = {"1 process": {}, "2 ddp": {"strategy": "ddp"}, "2 fsdp2": {"strategy": "fsdp2"}}


def seconds_per_step() -> dict[str, float]:
    """Return the seconds of a step whose ranks are live, and those of starting two ranks."""
    found = {}
    with TemporaryDirectory() as directory:
        root = Path(directory)
        first = open_policy(_config(root, {}))
        table = pa.concat_tables([annotated(_config(root, {}), first, 0)] * COPIES)
        table = replaced(table, "sample_id", list(range(len(table))))
        for name, strategy in SPREADS.items():
            spread = {**strategy, "num_processes": 2} if strategy else {}
            found |= _steps(_config(root, spread), root, name, table, first)
    ranks.close()
    return found


def _config(root: Path, spread: dict[str, object]) -> RunConfig:
    config = run_config(root, trainer={"num_threads": 1, "max_tokens_per_chunk": 1024, **spread})
    return config.model_copy(update={"model": Model(embedded=LARGER)})


def _steps(
    config: RunConfig, root: Path, name: str, table: pa.Table, policy: PolicyFiles
) -> dict[str, float]:
    """Take steps one after the other; the first, which loads and starts what it needs, is apart."""
    seconds = []
    for step in range(NUM_STEPS + 1):
        table = replaced(table, "policy_version", [policy.version] * len(table))
        table = replaced(table, "policy_digest", [policy.digest] * len(table))
        to = place(root, f"{name}-{step}")
        started = time.perf_counter()
        policy = launch("tasks.trainer.loop:train", config, table, policy, to, {}).policy
        seconds.append(time.perf_counter() - started)
    return {
        f"train s/step, {name}": sum(seconds[1:]) / NUM_STEPS,
        f"train s/first step, {name}": seconds[0],
    }
