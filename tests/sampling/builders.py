"""Tiny samplers and parameters with keyword defaults."""

from transformers import PreTrainedModel

from tasks.sampling.hf import HfSampler
from tasks.sampling.sampler import Completion, SamplingParams

END = 1


def sampler(model: PreTrainedModel, *, stops: tuple[int, ...] = (END,), pad: int = 0) -> HfSampler:
    return HfSampler(model=model, stop_token_ids=frozenset(stops), pad_token_id=pad)


def params(**changes: object) -> SamplingParams:
    values = {
        "temperature": 1.0,
        "max_tokens": 6,
        "num_samples": 4,
        "stop_token_ids": (),
        "seed": 3,
        "step": 2,
        "batch_size": 64,
    }
    return SamplingParams(**{**values, **changes})


def token_lists(groups: list[list[Completion]]) -> list[list[list[int]]]:
    return [[completion.tokens.tolist() for completion in group] for group in groups]
