"""What samples responses, whatever the engine."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Every number that the distribution of responses depends on; none is left to a model's files.

    Attributes:
        temperature: logits are divided by it; 0 takes the likeliest token.
        max_tokens: most response tokens.
        num_samples: responses per prompt.
        stop_token_ids: tokens that end a response, beside those that the model declares.
        seed: seed of the run.
        step: training step, so that a prompt met twice is answered anew.
        batch_size: most responses decoded at once.
    """

    temperature: float
    max_tokens: int
    num_samples: int
    stop_token_ids: tuple[int, ...]
    seed: int
    step: int
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One sampled response.

    Attributes:
        tokens: sampled token ids, the end token included.
        logprobs: log-probability of each of them (nats) under the distribution it was drawn from.
        finish_reason: `stop`, or `length` where `max_tokens` was reached without an end token.
        experts: [S - 1, R] the experts that each token of prompt and response but the last was sent
            to, layer by layer; None unless they were to be recorded.
    """

    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    finish_reason: str
    experts: npt.NDArray[np.int16] | None = None


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """What sampled a table: equal seeds give equal responses only where these are equal too.

    Attributes:
        engine: its name in `rollout.engine`.
        engine_version: of its library.
    """

    engine: str
    engine_version: str


class Sampler(Protocol):
    """An engine that holds a policy."""

    def sample(
        self, prompts: list[list[int]], group_ids: list[int], params: SamplingParams
    ) -> list[list[Completion]]:
        """Return `params.num_samples` completions for every prompt, in order."""
        ...

    def facts(self) -> EngineFacts:
        """Return what samples."""
        ...


def group_uniforms(group_id: int, params: SamplingParams) -> npt.NDArray[np.float64]:
    """Return the uniform numbers that a group's responses are drawn with: [G, T].

    A function of run seed, step, group and sample alone: neither the other prompts of a batch nor
    the place of a group in it, nor the shard that samples it, changes what is drawn.
    """
    entropy = np.random.SeedSequence((params.seed, params.step, group_id))
    generator = np.random.Generator(np.random.Philox(entropy))
    return generator.random((params.num_samples, params.max_tokens))


def sample_seeds(group_id: int, params: SamplingParams) -> list[int]:
    """Return a seed for each sample of a group, for engines that draw by themselves.

    Below 2**63, and a function of the same four numbers as `group_uniforms`.
    """
    keys = ((params.seed, params.step, group_id, sample) for sample in range(params.num_samples))
    return [int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1) for key in keys]
