"""Sampling with transformers: batched, with a key-value cache, in the process of the policy.

Dimensions: `P` prompts, `G` samples per prompt, `B = P * G` rows, `S` prompt positions,
`T` response positions, `V` vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedModel

from tasks.sampling.sampler import Completion, EngineFacts, SamplingParams, group_uniforms

COMPACT_BELOW = 0.75
"""Finished rows leave the batch once fewer than this share is still being written."""

RENAMED = "cache" in signature(LlamaForCausalLM.forward).parameters
CACHE = "cache" if RENAMED else "past_key_values"
"""What models call their key-value cache: vLLM keeps a transformers that has the older name."""


@dataclass(frozen=True, kw_only=True)
class HfSampler:
    """Samples from a transformers model.

    Attributes:
        model: a causal language model; its mode and its cache setting are restored after use.
        stop_token_ids: tokens that the model and its tokenizer declare an end.
        pad_token_id: any token; what stands at padding is never attended to.
    """

    model: PreTrainedModel
    stop_token_ids: frozenset[int]
    pad_token_id: int

    def sample(
        self, prompts: list[list[int]], group_ids: list[int], params: SamplingParams
    ) -> list[list[Completion]]:
        """Return `params.num_samples` completions for every prompt, in order.

        Raises:
            ValueError: if a prompt is empty.
        """
        if not all(prompts):
            raise ValueError(f"prompt {prompts.index([])} has no token; every prompt needs one")
        results: list[list[Completion]] = [[] for _ in prompts]
        with _inference(self.model):
            for rows, samples in _passes(len(prompts), params):
                draws = [group_uniforms(group_ids[row], params)[samples] for row in rows]
                uniforms = torch.from_numpy(np.concatenate(draws)).to(self.model.device)
                written = self._decode([prompts[row] for row in rows], uniforms, params)
                for row, completions in zip(rows, written, strict=True):
                    results[row] += completions
        return results

    def facts(self) -> EngineFacts:
        """Return the version of transformers."""
        return EngineFacts(engine="transformers", engine_version=transformers.__version__)

    def _decode(
        self, prompts: list[list[int]], uniforms_BT: Tensor, params: SamplingParams
    ) -> list[list[Completion]]:
        """Prefill every prompt once, copy its cache to its samples, and write them in step."""
        num_samples = len(uniforms_BT) // len(prompts)
        input_ids, mask = _left_padded(prompts, self.pad_token_id, self.model.device)
        cache = DynamicCache(config=self.model.config)
        logits_PV = self._forward(input_ids, mask, cache)
        if num_samples > 1:
            cache.batch_repeat_interleave(num_samples)
        state = _Writing(uniforms_BT, mask.repeat_interleave(num_samples, 0), self._stops(params))
        logits_BV = logits_PV.repeat_interleave(num_samples, 0)
        while True:
            tokens = state.write(*draw(logits_BV, state.uniforms(), params.temperature))
            keep = state.compact()
            if len(tokens) == 0 or state.done():
                break
            if keep is not None:
                cache.batch_select_indices(keep)
                tokens = tokens[keep]
            logits_BV = self._forward(tokens[:, None], state.mask, cache)
        return state.completions(len(prompts))

    def _stops(self, params: SamplingParams) -> Tensor:
        stops = sorted(self.stop_token_ids.union(params.stop_token_ids))
        return torch.tensor(stops, device=self.model.device, dtype=torch.int64)

    def _forward(self, input_ids: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        """Return the logits after the last position, in float32."""
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
        output = self.model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{CACHE: cache},
        )
        return output.logits[:, -1].float()


def draw(logits_BV: Tensor, uniforms_B: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return a token per row and its log-probability under the distribution it was drawn from.

    The token is the inverse of the cumulative distribution at the row's uniform number, so equal
    numbers give equal tokens whatever else is in the batch. Temperature 0 takes the likeliest
    token, with its log-probability at temperature 1.
    """
    logprobs_BV = torch.log_softmax(logits_BV / (temperature or 1.0), -1)
    if temperature == 0:
        tokens_B = logprobs_BV.argmax(-1)
    else:
        cumulative_BV = logprobs_BV.double().exp().cumsum(-1)
        target_B1 = (uniforms_B * cumulative_BV[:, -1])[:, None]
        tokens_B = torch.searchsorted(cumulative_BV, target_B1, right=True)[:, 0]
        tokens_B = tokens_B.clamp(max=logits_BV.shape[-1] - 1)
    return tokens_B, logprobs_BV.gather(-1, tokens_B[:, None])[:, 0]


class _Writing:
    """The responses being written: all rows' results, and which rows are still in the batch."""

    def __init__(self, uniforms_BT: Tensor, mask: Tensor, stops: Tensor) -> None:
        num_rows, self.max_tokens = uniforms_BT.shape
        device = uniforms_BT.device
        self._uniforms_BT, self._stops, self.mask = uniforms_BT, stops, mask
        self._rows = torch.arange(num_rows, device=device)
        self._tokens = torch.zeros(num_rows, self.max_tokens, dtype=torch.int32, device=device)
        self._logprobs = torch.zeros(num_rows, self.max_tokens, device=device)
        self._lengths = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._stopped = torch.zeros(num_rows, dtype=torch.bool, device=device)
        self._position = 0

    def uniforms(self) -> Tensor:
        """Return this position's uniform number for every row of the batch."""
        return self._uniforms_BT[self._rows, self._position]

    def write(self, tokens_B: Tensor, logprobs_B: Tensor) -> Tensor:
        """Append a token to every unfinished row; return the tokens."""
        open_rows = ~self._stopped[self._rows]
        rows = self._rows[open_rows]
        self._tokens[rows, self._position] = tokens_B[open_rows].int()
        self._logprobs[rows, self._position] = logprobs_B[open_rows]
        self._lengths[rows] += 1
        self._stopped[rows] = torch.isin(tokens_B[open_rows], self._stops)
        self._position += 1
        return tokens_B

    def compact(self) -> Tensor | None:
        """Drop finished rows once they are many; return the kept places, or None for all.

        The attention mask grows by the position just written.
        """
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], 1)
        keep = (~self._stopped[self._rows]).nonzero()[:, 0]
        if len(keep) >= COMPACT_BELOW * len(self._rows):
            return None
        self._rows, self.mask = self._rows[keep], self.mask[keep]
        return keep

    def done(self) -> bool:
        """Return whether every row ended or reached its bound."""
        return self._position == self.max_tokens or bool(self._stopped.all())

    def completions(self, num_prompts: int) -> list[list[Completion]]:
        """Return the written responses, grouped by prompt."""
        tokens, logprobs = self._tokens.cpu().numpy(), self._logprobs.cpu().numpy()
        lengths, stopped = self._lengths.tolist(), self._stopped.tolist()
        flat = [
            Completion(
                tokens=tokens[row, :length],
                logprobs=logprobs[row, :length],
                finish_reason="stop" if stopped[row] else "length",
            )
            for row, length in enumerate(lengths)
        ]
        size = len(flat) // num_prompts
        return [flat[start : start + size] for start in range(0, len(flat), size)]


def _passes(num_prompts: int, params: SamplingParams) -> Iterator[tuple[range, slice]]:
    """Cut the work into (prompts, samples) that stay within `batch_size` rows."""
    samples = min(params.num_samples, params.batch_size)
    prompts = max(1, params.batch_size // samples)
    for first in range(0, num_prompts, prompts):
        for sample in range(0, params.num_samples, samples):
            yield range(first, min(first + prompts, num_prompts)), slice(sample, sample + samples)


def _left_padded(
    prompts: list[list[int]], pad_token_id: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return token ids and attention mask [P, S]; the mask comes from lengths, not from ids."""
    width = max(map(len, prompts))
    ids = [[pad_token_id] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


@contextmanager
def _inference(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode without gradients; the model's own mode comes back afterwards."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
