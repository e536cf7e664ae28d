"""The `data` section: where prompts come from."""

from typing import Literal

from pydantic import Field

from configs.base import Section


class PromptSource(Section):
    """The prompt source, its order, and how a problem becomes a prompt."""

    source: Literal["arithmetic", "gsm8k", "file", "provider"] = "arithmetic"
    """`arithmetic`: additions made locally; `gsm8k`: word problems that ship with the project,
    1,500 to train on and its test set; `file`: rows of a file; `provider`: your function."""

    digits: int = Field(default=2, ge=1, le=3)
    """Digits of each operand of the `arithmetic` source."""

    path: str = ""
    """JSON lines or Parquet of the `file` source, on any fsspec store (`hf://datasets/...`)."""

    held_out_path: str = ""
    """The same of held-out problems; empty: `num_held_out` rows of `path`, chosen by `seed`."""

    prompt_field: str = "question"
    """Column of the `file` source with the problem's text."""

    provider: str = ""
    """`package.module:function` of the `provider` source, a function `(data) -> Problems`."""

    chat: bool = False
    """Wrap each problem as a user message of the tokenizer's chat template."""

    system_prompt: str = ""
    """System message of the chat; empty: none."""

    seed: int = Field(default=0, ge=0)
    """Seed of the split into training and held-out problems and of the order of prompts."""

    num_train: int = Field(default=0, ge=0)
    """Problems to train on, the first of the source; 0: all."""

    num_held_out: int = Field(default=500, ge=1)
    """Problems that are never trained on and that evaluation draws from."""


class Data(PromptSource):
    """The prompt source, its order, and how a problem becomes a prompt."""

    answer_field: str = "answer"
    """Column of the `file` source with the answer that the reward compares with."""
