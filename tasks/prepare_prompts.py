"""Flyte task: tokenise every problem once."""

from typing import NamedTuple

from flytekit import Cache, task

from configs.data import Data
from images.roles import LIGHT
from tasks.data.arrow import Table
from tasks.handle import Policy


class Prepared(NamedTuple):
    """Prompts to train on, prompts to evaluate on, and a digest of both."""

    train: Table
    held_out: Table
    fingerprint: str


CACHE_VERSION = "1"
"""Raise when the meaning of a column changes; Flyte would otherwise replay the old tables."""


@task(container_image=LIGHT, cache=Cache(version=CACHE_VERSION))
def prepare_prompts(data: Data, policy: Policy, max_prompt_tokens: int) -> Prepared:
    """Load the problems, tokenise them, and leave out those that cannot be prompts."""
    from tasks.data.preparing import prepare
    from tasks.policy.tokenizing import encoder, tokenizer_of

    encode = encoder(tokenizer_of(policy.local()), data)
    return Prepared(*prepare(data, encode, max_prompt_tokens=max_prompt_tokens))
