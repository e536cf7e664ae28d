"""The `rollout` section: how responses are sampled."""

from typing import Literal

from pydantic import Field

from configs.base import Section


class Rollout(Section):
    """One batch of sampled responses."""

    engine: Literal["transformers"] = "transformers"
    """What samples: `transformers` runs in the process that holds the policy."""

    prompts_per_step: int = Field(default=128, ge=1)
    """Prompts, and so groups, per training step."""

    group_size: int = Field(default=8, ge=1)
    """Responses sampled for each prompt."""

    max_tokens: int = Field(default=4, ge=1)
    """Most response tokens; also the divisor of `seq-mean-token-sum-fixed`."""

    max_prompt_tokens: int = Field(default=64, ge=1)
    """Longest prompt; a longer one stops the run by name."""

    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature: logits are divided by it; training needs more than 0."""

    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus mass; only 1 (off) trains, as engine and loss must share one distribution."""

    top_k: int = Field(default=0, ge=0)
    """Most likely tokens kept; only 0 (off) trains."""

    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Least probability relative to the likeliest token; only 0 (off) trains."""

    stop_token_ids: list[int] = []
    """Tokens that end a response, beside those of the tokenizer and the generation config."""

    batch_size: int = Field(default=1024, ge=1)
    """Most responses decoded at once; bounds the memory of the KV cache."""

    staleness: int = Field(default=0, ge=0)
    """Steps by which the sampling policy may trail the trained one."""

    shards: int = Field(default=1, ge=1)
    """Rollout tasks among which the prompts of a step are divided."""
