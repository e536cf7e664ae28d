"""The tokenizer of a policy, kept between the tasks of a process."""

from collections.abc import Callable

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tasks.policy import resident
from tasks.policy.digests import file_digest
from tasks.policy.files import PolicyFiles


def tokenizer_of(files: PolicyFiles) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a policy; prompts are padded on the left."""
    return resident.borrow(
        "tokenizer",
        tokenizer_digest(files),
        lambda: AutoTokenizer.from_pretrained(files.weights, padding_side="left"),
    )


def tokenizer_digest(files: PolicyFiles) -> str:
    """Return a digest of the tokenizer's files."""
    names = ("tokenizer.json", "tokenizer_config.json")
    present = [files.weights / name for name in names if (files.weights / name).is_file()]
    return ":".join(file_digest(path) for path in present)


def encoder(files: PolicyFiles) -> Callable[[list[str]], list[list[int]]]:
    """Return the function from texts to the token ids that the policy reads."""
    tokenizer = tokenizer_of(files)
    return lambda texts: tokenizer(texts)["input_ids"]
