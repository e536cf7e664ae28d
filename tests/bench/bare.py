"""The floor: the forward and backward passes of our step in a plain loop, with none of our code.

python -m tests.bench.bare FOLDER

Prompts are prefilled once and their keys and values copied to the group; logits are taken where
responses stand and nowhere else; rows are cut into the very chunks that ours are cut into. There
is no reward (advantages are random numbers), no table, no check, no file and no metric.
"""

import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from tasks.trainer.rows import plan_chunks, split_rows
from tests.bench.work import (
    ADAM_BETAS,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    NUM_THREADS,
    Folder,
    Report,
    Step,
    Work,
)

CLIP = 0.2
DUAL_CLIP = 3.0


def main(root: str) -> None:
    """Take the steps of the work and tell what they took."""
    torch.set_num_threads(NUM_THREADS)
    torch.manual_seed(0)
    folder = Folder(root=Path(root))
    work = folder.read_work()
    model = AutoModelForCausalLM.from_pretrained(folder.policy, dtype=torch.float32).eval()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=ADAM_BETAS, weight_decay=0.0, fused=True
    )
    prompts = [line["tokens"] for line in folder.prompts()]
    names = ("torch", "transformers")
    report = Report(side="bare", num_rows=work.num_rows, versions={n: version(n) for n in names})
    for step in range(work.num_steps):
        picked = prompts[step * work.prompts_per_step : (step + 1) * work.prompts_per_step]
        report.steps.append(one_step(model, optimizer, picked, work))
    report.tell()


def one_step(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, prompts: list[list[int]], work: Work
) -> Step:
    """Sample, then train on what was sampled."""
    rows = [prompt for prompt in prompts for _ in range(work.group_size)]
    plan = planned(rows, work)
    started = time.perf_counter()
    responses = generate(model, prompts, work)
    generated = time.perf_counter()
    train(model, optimizer, rows, responses, plan)
    return Step(
        generate_s=generated - started,
        step_s=time.perf_counter() - started,
        prompt_tokens=sum(map(len, rows)),
        completion_tokens=responses.numel(),
    )


def planned(rows: list[list[int]], work: Work) -> list[list[list[int]]]:
    """Return the rows of every chunk of every mini-batch, as our trainer cuts them."""
    widths = np.array([(len(prompt), work.max_tokens) for prompt in rows])
    return [
        [chunk.tolist() for chunk in plan_chunks(widths, part, max_tokens=work.chunk_tokens)]
        for part in split_rows(len(rows), work.mini_batches)
    ]


@torch.no_grad()
def generate(model: PreTrainedModel, prompts: list[list[int]], work: Work) -> Tensor:
    """Return sampled responses [B, T]."""
    input_ids, mask = padded(prompts)
    cache = DynamicCache(config=model.config)
    logits = forward(model, input_ids, mask, cache).repeat_interleave(work.group_size, 0)
    cache.batch_repeat_interleave(work.group_size)
    mask = mask.repeat_interleave(work.group_size, 0)
    written = [torch.multinomial(logits.softmax(-1), 1)]
    while len(written) < work.max_tokens:
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        logits = forward(model, written[-1], mask, cache)
        written.append(torch.multinomial(logits.softmax(-1), 1))
    return torch.cat(written, 1)


def forward(model: PreTrainedModel, input_ids: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
    """Return the logits [B, V] after the last position."""
    output = model(
        input_ids=input_ids,
        attention_mask=mask,
        position_ids=positions(mask)[:, -input_ids.shape[1] :],
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return output.logits[:, -1]


def train(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    rows: list[list[int]],
    responses: Tensor,
    plan: list[list[list[int]]],
) -> None:
    """Take an optimizer step for each mini-batch, on advantages drawn at random."""
    advantages = torch.randn(len(rows), 1)
    old = {}
    if len(plan) > 1:
        with torch.no_grad():
            for chunk in (tuple(chunk) for chunks in plan for chunk in chunks):
                old[chunk] = logprobs(model, [rows[row] for row in chunk], responses[list(chunk)])
    for chunks in plan:
        num_tokens = sum(map(len, chunks)) * responses.shape[1]
        for chunk in chunks:
            scored = logprobs(model, [rows[row] for row in chunk], responses[chunk])
            behaviour = old.get(tuple(chunk), scored.detach())
            (clipped(scored, behaviour, advantages[chunk]).sum() / num_tokens).backward()
        clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def clipped(scored: Tensor, behaviour: Tensor, advantages: Tensor) -> Tensor:
    """Return the clipped surrogate of every token, dual clip included."""
    ratio = (scored - behaviour).exp()
    bounded = ratio.clamp(1 - CLIP, 1 + CLIP)
    loss = -torch.minimum(ratio * advantages, bounded * advantages)
    return torch.where(advantages < 0, loss.clamp(max=-DUAL_CLIP * advantages), loss)


def logprobs(model: PreTrainedModel, prompts: list[list[int]], responses: Tensor) -> Tensor:
    """Return the log-probabilities [B, T] of responses."""
    input_ids, mask = padded(prompts)
    input_ids = torch.cat([input_ids, responses], 1)
    mask = torch.cat([mask, torch.ones_like(responses)], 1)
    hidden = model.base_model(
        input_ids=input_ids,
        attention_mask=mask,
        position_ids=positions(mask),
        use_cache=False,
    ).last_hidden_state[:, -responses.shape[1] - 1 : -1]
    logits = model.get_output_embeddings()(hidden)
    return logits.log_softmax(-1).gather(-1, responses[..., None])[..., 0]


def padded(prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return token ids and mask of prompts, padded on the left."""
    width = max(map(len, prompts))
    ids = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids), torch.tensor(mask)


def positions(mask: Tensor) -> Tensor:
    """Return the position of every token among those that are none of padding."""
    return (mask.cumsum(1) - 1).clamp(min=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
