"""Peak memory of a training pass over 4 x 1024 tokens, ours beside plain full logits.

The model has the configuration of SmolLM2-135M and random weights. Rows have 256 prompt and 768
response tokens; both ways take all four in one pass. Each is measured in a process of its own: the
peak of its resident memory above what it was once the model had been loaded.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600
NUM_ROWS, NUM_PROMPT, NUM_RESPONSE = 4, 256, 768
WORK = f"{NUM_ROWS} x ({NUM_PROMPT} prompt + {NUM_RESPONSE} response) tokens"
GOAL = 0.6
"""Ours should need at most this share of what the plain way needs."""

SMOLLM2_135M = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}

Pass = Callable[[PreTrainedModel], None]


def ours(model: PreTrainedModel) -> None:
    """Take the pass as the trainer does."""
    from tasks.trainer.policy import PolicyAdapter, PolicyModel

    policy = PolicyAdapter(PolicyModel(model))
    policy.token_logprobs(_batch(), temperature=1.0).logprobs.sum().backward()


def ours_recomputing(model: PreTrainedModel) -> None:
    """Take the pass as the trainer does with `trainer.gradient_checkpointing`."""
    from tasks.trainer.recomputing import recompute_layers

    recompute_layers(model)
    ours(model)


def plain(model: PreTrainedModel) -> None:
    """Score every position from the logits of all."""
    batch = _batch()
    logprobs = model(batch.input_ids, use_cache=False).logits.float().log_softmax(-1)
    chosen = logprobs[:, :-1].gather(-1, batch.input_ids[:, 1:, None])[..., 0]
    chosen[:, NUM_PROMPT - 1 :].sum().backward()


def plain_recomputing(model: PreTrainedModel) -> None:
    """Do the same with checkpointing as transformers has it, in training mode."""
    model.activation_checkpointing_enable({"use_reentrant": False})
    plain(model.train())


PASSES: dict[str, Pass] = {
    f.__name__: f for f in (ours, ours_recomputing, plain, plain_recomputing)
}


def _batch():
    import numpy as np

    from tasks.trainer.rows import Rows, collate

    rng = np.random.default_rng(0)

    def tokens(length: int) -> list[np.ndarray]:
        return [rng.integers(0, SMOLLM2_135M["vocab_size"], length) for _ in range(NUM_ROWS)]

    rows = Rows(
        ids=np.arange(NUM_ROWS),
        prompts=tokens(NUM_PROMPT),
        responses=tokens(NUM_RESPONSE),
        masks=[np.ones(NUM_RESPONSE, bool)] * NUM_ROWS,
        advantages=np.ones(NUM_ROWS, np.float32),
        engine_logprobs=[np.zeros(NUM_RESPONSE, np.float32)] * NUM_ROWS,
    )
    return collate(rows, np.arange(NUM_ROWS), torch.device("cpu"))


def peak_gib(name: str) -> float:
    """Return what a pass takes above the loaded model, in GiB, measured in a fresh process."""
    command = [sys.executable, "-m", "tests.bench.memory", name]
    done = subprocess.run(
        command, cwd=ROOT, check=True, timeout=TIMEOUT_S, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


def _resident(field: str) -> int:
    """Return a field of this process's status in KiB: `VmRSS` now, `VmHWM` at most so far."""
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(field)
    )
    return int(line.split()[1])


def main(name: str) -> None:
    """Measure one pass in this process."""
    model = LlamaForCausalLM(LlamaConfig(**SMOLLM2_135M)).eval()
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    PASSES[name](model)
    print((_resident("VmHWM") - before) / 2**20)


if __name__ == "__main__":
    main(sys.argv[1])
