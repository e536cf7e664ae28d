"""Write what all sides of a comparison read: a policy, and the prompts of every step.

python -m tests.bench.prepare FOLDER    (FOLDER holds the work)
"""

import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa

from configs.resolve import resolve
from configs.run import RunConfig
from tasks.data.arrow import write_table
from tasks.data.preparing import prepare
from tasks.data.prompts import select, take
from tasks.policy.start import initial_policy
from tasks.policy.tokenizing import encoder, tokenizer_of
from tests.bench.work import (
    ADAM_BETAS,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    NUM_THREADS,
    TEMPERATURE,
    Folder,
    Work,
)

DECLARING_FILES = ("config.json", "generation_config.json", "tokenizer_config.json")
END_KEYS = ("eos_token_id", "eos_token")


def settings(work: Work, folder: Folder, *changes: str) -> RunConfig:
    """Return the config under which our side does a work."""
    words = {
        "algorithm": "grpo",
        "job.name": "bench",
        "job.output_root": folder.root / "runs",
        "data.chat": "false",
        "rollout.prompts_per_step": work.prompts_per_step,
        "rollout.group_size": work.group_size,
        "rollout.max_prompt_tokens": work.max_prompt_tokens,
        "rollout.max_tokens": work.max_tokens,
        "rollout.batch_size": work.num_rows,
        "rollout.temperature": TEMPERATURE,
        "reward.provider": "tests.bench.reward:variety",
        "rl.grpo_surrogate": "clipped",
        "rl.mini_batches": work.mini_batches,
        "rl.max_steps": work.num_steps,
        "trainer.learning_rate": LEARNING_RATE,
        "trainer.lr_schedule": "constant",
        "trainer.warmup_steps": 0,
        "trainer.adam_beta1": ADAM_BETAS[0],
        "trainer.adam_beta2": ADAM_BETAS[1],
        "trainer.max_grad_norm": MAX_GRAD_NORM,
        "trainer.num_threads": NUM_THREADS,
        "trainer.max_tokens_per_chunk": work.chunk_tokens,
    }
    return resolve(work.recipe, [f"{key}={value}" for key, value in words.items()] + [*changes])


def main(root: str) -> None:
    """Fill the folder."""
    folder = Folder(root=Path(root))
    work = folder.read_work()
    config = settings(work, folder)
    files = initial_policy(
        config.model,
        config.data,
        seed=config.job.seed,
        output_root=Path(config.job.output_root),
    )
    shutil.copytree(files.weights, folder.policy)
    shutil.copytree(files.weights, folder.endless)
    declare_no_end(folder.endless)
    encode = encoder(tokenizer_of(files), config.data)
    pool, _, _ = prepare(config.data, encode, max_prompt_tokens=work.max_prompt_tokens)
    write_prompts(folder, pool, work, data_seed=config.data.seed)


def declare_no_end(policy: Path) -> None:
    """Take every end token out of a policy's files: each response then has `max_tokens` tokens."""
    for path in (policy / name for name in DECLARING_FILES):
        declared = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in declared.items() if k not in END_KEYS}))


def write_prompts(folder: Folder, pool: pa.Table, work: Work, *, data_seed: int) -> None:
    """Write the prompts of all steps, in order, as a table and as lines."""
    num_prompts = work.num_steps * work.prompts_per_step
    table = take(pool, select(len(pool), 0, num_prompts=num_prompts, data_seed=data_seed))
    write_table(folder.table, table)
    texts, tokens = (table[name].to_pylist() for name in ("prompt_text", "prompt_tokens"))
    lines = [
        json.dumps({"prompt": text, "tokens": ids}) for text, ids in zip(texts, tokens, strict=True)
    ]
    folder.lines.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
