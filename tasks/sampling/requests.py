"""What is asked of vLLM for one response, in this process or by HTTP: every sampling field is set.

A field left out would be filled from the generation config that a model ships, and the trainer
would score another distribution than the one that was sampled.
"""

from collections.abc import Iterator

from tasks.sampling.sampler import Completion, SamplingParams, sample_seeds

TEMPERATURES = 0.01, 2.0
"""vLLM silently raises a temperature between 0 and the first, and refuses one above the second."""

NEUTRAL: dict[str, object] = {
    "n": 1,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": [],
    "min_tokens": 0,
    "stop": [],
    "watermarking": False,
    "logprobs": 0,
}
"""The plain softmax at a temperature, with the log-probability of the sampled token alone.

`min_tokens` stays 0: it hides the end tokens, and the reported log-probabilities with them.
"""


def requests(
    group_ids: list[int], params: SamplingParams, stop_token_ids: frozenset[int]
) -> Iterator[dict[str, object]]:
    """Yield the sampling fields of every response, groups together and in order.

    One request per response, because only so has each its own seed. The model's own end token is
    ignored and then listed among the stops, so that one explicit set ends a response.

    Raises:
        ValueError: the temperature is one at which vLLM does not sample.
    """
    low, high = TEMPERATURES
    if params.temperature != 0 and not low <= params.temperature <= high:
        raise ValueError(
            f"temperature {params.temperature}: vLLM samples at 0 (greedy) or between {low} and "
            f"{high}; use one of these, or rollout.engine=transformers"
        )
    shared = {
        **NEUTRAL,
        "temperature": params.temperature,
        "max_tokens": params.max_tokens,
        "stop_token_ids": sorted(stop_token_ids.union(params.stop_token_ids)),
        "ignore_eos": True,
    }
    for group_id in group_ids:
        for seed in sample_seeds(group_id, params):
            yield {**shared, "seed": seed}


def require_tokens(prompts: list[list[int]]) -> None:
    """Refuse a prompt without tokens.

    Raises:
        ValueError: naming its place.
    """
    if not all(prompts):
        raise ValueError(f"prompt {prompts.index([])} has no token; every prompt needs one")


def in_groups(completions: list[Completion], size: int) -> list[list[Completion]]:
    """Return a flat list of completions cut into groups."""
    return [completions[start : start + size] for start in range(0, len(completions), size)]
