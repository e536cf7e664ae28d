"""A step of an adapter on one process and on two ranks; runs in a child process."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import load_file

from configs.model import Lora
from configs.run import RunConfig
from tasks.policy.directory import ADAPTER_FILE
from tasks.trainer import ranks
from tasks.trainer.launch import launch
from tasks.trainer.state import MOMENTS_FILE
from tests.policy.builders import open_policy, run_config
from tests.trainer.loop_runs import annotated, forget, place

SPREADS = [(1, "ddp"), (2, "ddp"), (2, "fsdp2")]
DTYPES = ("float32", "bfloat16")
LORA = {"lora": Lora(rank=2, alpha=8.0)}


def _config(root: Path, dtype: str, num_ranks: int, strategy: str) -> RunConfig:
    """Weights move smoothly with the gradient, so that rounding stays rounding."""
    several = {"num_processes": num_ranks, "strategy": strategy, "rank_timeout_s": 120.0}
    trainer = {"max_tokens_per_chunk": 24, "adam_epsilon": 1e-3, "learning_rate": 1e-2}
    return run_config(
        root,
        model={**LORA, "dtype": dtype},
        rl={"kl_beta": 0.5, "mini_batches": 2},
        trainer={**trainer, **(several if num_ranks > 1 else {})},
    )


def compute() -> dict[tuple[str, int, str], dict[str, Any]]:
    found = {}
    with TemporaryDirectory() as directory:
        for dtype in DTYPES:
            root = Path(directory, dtype)
            first = open_policy(_config(root, dtype, *SPREADS[0]))
            table = annotated(_config(root, dtype, *SPREADS[0]), first, 0)
            for spread_over in SPREADS:
                forget()
                config = _config(root, dtype, *spread_over)
                to = place(root, "-".join(map(str, spread_over)))
                done = launch("tasks.trainer.loop:train", config, table, first, to, {})
                found[dtype, *spread_over] = {
                    "before": load_file(first.weights / ADAPTER_FILE),
                    "weights": load_file(done.policy.weights / ADAPTER_FILE),
                    "moments": load_file(done.policy.trainer_state / MOMENTS_FILE),
                    "metrics": done.metrics,
                }
        ranks.close()
    return found
