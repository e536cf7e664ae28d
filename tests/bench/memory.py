"""Peak memory of a training pass over 4 x 1024 tokens, ours beside plain full logits.

The model has the configuration of SmolLM2-135M and random float32 weights. Rows have 256 prompt and
768 response tokens. Each way is measured in a process of its own: the peak of its resident memory
above what it was once the model had been loaded, so gradients count and weights do not.
"""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tasks.trainer.policy import PolicyAdapter, PolicyModel
from tasks.trainer.recomputing import recompute_layers
from tasks.trainer.rows import Rows, collate, plan_chunks
from tests.bench.records import Record, compared

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 1800
NUM_ROWS, NUM_PROMPT, NUM_RESPONSE = 4, 256, 768
NUM_TOKENS = NUM_ROWS * (NUM_PROMPT + NUM_RESPONSE)
WORK = f"SmolLM2-135M, {NUM_ROWS} x ({NUM_PROMPT} prompt + {NUM_RESPONSE} response) tokens"
VOCABULARY = 49152


def build_model() -> PreTrainedModel:
    """Return SmolLM2-135M with random weights."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def build_rows() -> Rows:
    """Return the rows of one pass."""
    rng = np.random.default_rng(0)

    def tokens(length: int) -> list[np.ndarray]:
        return list(rng.integers(0, VOCABULARY, (NUM_ROWS, length)))

    return Rows(
        ids=np.arange(NUM_ROWS),
        prompts=tokens(NUM_PROMPT),
        responses=tokens(NUM_RESPONSE),
        masks=[np.ones(NUM_RESPONSE, bool)] * NUM_ROWS,
        advantages=np.ones(NUM_ROWS, np.float32),
        engine_logprobs=[np.zeros(NUM_RESPONSE, np.float32)] * NUM_ROWS,
    )


def ours(model: PreTrainedModel, *, recompute: bool, max_tokens: int = NUM_TOKENS) -> None:
    """Go through the rows as the trainer does, in chunks of at most so many tokens."""
    if recompute:
        recompute_layers(model)
    policy, rows = PolicyAdapter(PolicyModel(model)), build_rows()
    for part in plan_chunks(rows.widths, np.arange(NUM_ROWS), max_tokens=max_tokens):
        chunk = collate(rows, part, torch.device("cpu"))
        policy.token_logprobs(chunk, temperature=1.0).logprobs.sum().backward()


def plain(model: PreTrainedModel, *, recompute: bool) -> None:
    """Take the log-probabilities from the logits of every position, in one pass."""
    if recompute:
        model.activation_checkpointing_enable({"use_reentrant": False})
        model.train()  # it has no dropout
    ids = collate(build_rows(), np.arange(NUM_ROWS), torch.device("cpu")).input_ids
    logprobs = model(ids, use_cache=False).logits.log_softmax(-1)
    chosen = logprobs[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    chosen[:, NUM_PROMPT - 1 :].sum().backward()


WAYS: dict[str, Callable[[PreTrainedModel], None]] = {
    "ours": partial(ours, recompute=False),
    "ours, a row at a time": partial(ours, recompute=False, max_tokens=NUM_TOKENS // NUM_ROWS),
    "ours, checkpointing": partial(ours, recompute=True),
    "plain": partial(plain, recompute=False),
    "plain, checkpointing": partial(plain, recompute=True),
}

PHASES = {
    "one pass": ("ours", "plain"),
    "one pass, gradient checkpointing in both": ("ours, checkpointing", "plain, checkpointing"),
    "gradient checkpointing in ours": ("ours, checkpointing", "plain"),
    "trainer.max_tokens_per_chunk=1024 in ours": ("ours, a row at a time", "plain"),
}
"""What is compared with what, in GiB of peak memory."""


def measure() -> list[Record]:
    """Return what each phase takes, ours and plain, in GiB."""
    peaks = {way: _in_a_process(way) for way in WAYS}
    return [
        compared(WORK, f"peak memory GiB, {phase}", peaks[first], peaks[second])
        for phase, (first, second) in PHASES.items()
    ]


def _in_a_process(way: str) -> float:
    command = [sys.executable, "-m", "tests.bench.memory", way]
    done = subprocess.run(
        command, cwd=ROOT, check=True, timeout=TIMEOUT_S, stdout=subprocess.PIPE, text=True
    )
    return float(done.stdout)


def peak_gib(way: str) -> float:
    """Return what a way takes above the loaded model, in GiB, measured in this process."""
    model = build_model()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status_kib("VmRSS")
    WAYS[way](model)
    return (_status_kib("VmHWM") - before) / 2**20


def _status_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


if __name__ == "__main__":
    print(peak_gib(sys.argv[1]))
