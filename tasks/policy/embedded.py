"""The small language model that needs no download: built here, warm-started on the task itself."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from configs.data import Data
from configs.model import EMBEDDED_CONTEXT, EmbeddedModel
from tasks.data.arithmetic import EOS, PAD, UNK, VOCABULARY
from tasks.data.sources import load_problems

WARMUP_STEPS = 50
CHECK_EVERY = 5
NUM_CHECK_PROBLEMS = 500


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character of the arithmetic task."""
    vocabulary = {symbol: index for index, symbol in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build_model(shape: EmbeddedModel, *, seed: int) -> LlamaForCausalLM:
    """Return a randomly initialised model; the caller's random state is untouched.

    A Llama config, because with others the tokenizer of this directory is not read back as written.
    """
    end, pad = VOCABULARY.index(EOS), VOCABULARY.index(PAD)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        max_position_embeddings=EMBEDDED_CONTEXT,
        initializer_range=shape.initializer_range,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=pad)
    return model.eval()


def bootstrap(shape: EmbeddedModel, data: Data, *, seed: int, to: Path) -> float:
    """Build and warm-start a model, write it with its tokenizer, and return its accuracy.

    Supervised steps on training problems until `shape.warm_start_accuracy` of them are answered
    exactly; held-out problems are never seen.

    Raises:
        RuntimeError: if `shape.warm_start_max_steps` steps do not reach that accuracy.
    """
    tokenizer, model = build_tokenizer(), build_model(shape, seed=seed)
    accuracy = _warm_start(model, _examples(tokenizer, data), shape, seed=seed)
    if shape.warm_start_max_steps and accuracy < shape.warm_start_accuracy:
        raise RuntimeError(
            f"the embedded model reached an accuracy of {accuracy:.3f} after "
            f"{shape.warm_start_max_steps} warm-start steps, expected "
            f"{shape.warm_start_accuracy}; raise model.embedded.warm_start_max_steps or lower "
            "model.embedded.warm_start_accuracy"
        )
    model.save_pretrained(to)
    tokenizer.save_pretrained(to)
    return accuracy


def _examples(tokenizer: PreTrainedTokenizerFast, data: Data) -> torch.Tensor:
    """Return every training problem with its answer and end token: [N, L], all of one length."""
    texts = [f"{problem.text}{problem.answer}{EOS}" for problem in load_problems(data).train]
    return torch.tensor(tokenizer(texts, add_special_tokens=False)["input_ids"])


def _warm_start(
    model: LlamaForCausalLM, examples: torch.Tensor, shape: EmbeddedModel, *, seed: int
) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=shape.warm_start_learning_rate)
    answer_start = int((examples[0] == VOCABULARY.index("=")).nonzero()[0]) + 1
    checked = examples[:NUM_CHECK_PROBLEMS]
    accuracy = 0.0
    batches = _batches(len(examples), shape.warm_start_batch_size, seed=seed)
    for step in range(shape.warm_start_max_steps):
        rate = shape.warm_start_learning_rate * min(1.0, (step + 1) / WARMUP_STEPS)
        optimizer.param_groups[0]["lr"] = rate
        _supervised_step(model, optimizer, examples[next(batches)], answer_start)
        if (step + 1) % CHECK_EVERY == 0:
            accuracy = _exact_fraction(model, checked, answer_start)
            if accuracy >= shape.warm_start_accuracy:
                break
    return accuracy


def _batches(num_rows: int, size: int, *, seed: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(seed)
    while True:
        yield generator.integers(num_rows, size=size)


def _supervised_step(
    model: LlamaForCausalLM,
    optimizer: torch.optim.Optimizer,
    rows: torch.Tensor,
    answer_start: int,
) -> None:
    logits = model(rows[:, :-1]).logits[:, answer_start - 1 :]
    loss = cross_entropy(logits.flatten(0, 1), rows[:, answer_start:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def _exact_fraction(model: LlamaForCausalLM, rows: torch.Tensor, answer_start: int) -> float:
    """Return the share of rows answered exactly by greedy decoding.

    Greedy decoding gives the answer exactly when every token of it is the likeliest one after the
    true tokens before it, so one forward pass decides.
    """
    likeliest = model(rows[:, :-1]).logits[:, answer_start - 1 :].argmax(-1)
    return (likeliest == rows[:, answer_start:]).all(1).double().mean().item()
