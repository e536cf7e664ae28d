"""Tiny samplers and parameters with keyword defaults."""

from collections.abc import Iterator

import numpy as np
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


def flat(groups: list[list[Completion]]) -> Iterator[Completion]:
    return (completion for group in groups for completion in group)


def assert_same_samples(got: list[list[Completion]], expected: list[list[Completion]]) -> None:
    assert token_lists(got) == token_lists(expected)
    for mine, other in zip(flat(got), flat(expected), strict=True):
        np.testing.assert_allclose(mine.logprobs, other.logprobs, rtol=0, atol=1e-5)
        assert mine.finish_reason == other.finish_reason
