"""Tiny policies, rows of unequal length, and log-probabilities computed the plain way."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from configs.model import EmbeddedModel
from objectives.batch import TrajectoryBatch
from tasks.policy.embedded import build_model
from tasks.trainer.policy import PolicyAdapter, PolicyModel
from tasks.trainer.rows import Rows, collate

TINY = EmbeddedModel(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
TINY_QWEN = {
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
CPU = torch.device("cpu")


def rotary(seed: int = 0) -> PreTrainedModel:
    return build_model(TINY, seed=seed)


def learned_positions(seed: int = 0, *, vocab_size: int = 20) -> PreTrainedModel:
    """A model that is wrong as soon as one position id is; weights large enough to show it."""
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=32,
        n_embd=16,
        n_layer=1,
        n_head=2,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config).eval()


def adapter(model: PreTrainedModel) -> PolicyAdapter:
    return PolicyAdapter(PolicyModel(model))


def make_rows(
    lengths: Sequence[tuple[int, int]] = ((4, 3), (2, 5), (6, 1), (3, 4)),
    *,
    vocabulary: int = 20,
    masked: Sequence[int] = (),
    seed: int = 0,
) -> Rows:
    """Rows of the given (prompt, response) lengths; the rows in `masked` train no token."""
    rng = np.random.default_rng(seed)

    def tokens(length: int) -> np.ndarray:
        return rng.integers(0, vocabulary, length)

    prompts, responses = zip(*[(tokens(p), tokens(r)) for p, r in lengths], strict=True)
    return Rows(
        ids=np.arange(len(lengths)) * 10 + 3,
        prompts=list(prompts),
        responses=list(responses),
        masks=[np.full(r, row not in masked) for row, (_, r) in enumerate(lengths)],
        advantages=rng.normal(size=len(lengths)).astype(np.float32),
        engine_logprobs=[np.log(rng.uniform(0.02, 0.12, r)).astype(np.float32) for _, r in lengths],
    )


def batch_of(rows: Rows, picked: Sequence[int] | None = None) -> TrajectoryBatch:
    return collate(rows, np.array(range(len(rows)) if picked is None else picked), CPU)


def reference(
    model: PreTrainedModel, prompt: Sequence[int], response: Sequence[int], temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of one response, alone, from full float64 logits."""
    ids = torch.tensor([*prompt, *response])
    logits = model(ids[None], use_cache=False).logits[0].double() / temperature
    distribution = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    chosen = distribution[torch.arange(len(response)), ids[len(prompt) :]]
    return chosen, -(distribution.exp() * distribution).sum(-1)
