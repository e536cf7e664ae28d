"""What a policy's directory declares about itself, read without loading its weights."""

from dataclasses import dataclass
from pathlib import Path

from transformers import AutoConfig, GenerationConfig, PretrainedConfig

from tasks.policy.directory import base_of, end_tokens
from tasks.policy.files import PolicyFiles
from tasks.policy.tokenizing import tokenizer_of


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Facts that every sampling engine needs.

    Attributes:
        stop_token_ids: tokens that the tokenizer or the generation config declares an end.
        context: most tokens, prompt and response together; None: unbounded.
        tied: whether the output layer shares the embedding's weights.
    """

    stop_token_ids: frozenset[int]
    context: int | None
    tied: bool


def declared(files: PolicyFiles) -> Declared:
    """Return what the directory of a policy declares."""
    config = AutoConfig.from_pretrained(base_of(files.weights))
    text = config.get_text_config()
    return Declared(
        stop_token_ids=frozenset(
            end_tokens(_generation(files.weights, config), tokenizer_of(files))
        ),
        context=getattr(text, "max_position_embeddings", None),
        tied=bool(text.tie_word_embeddings),
    )


def _generation(directory: Path, config: PretrainedConfig) -> GenerationConfig:
    """Return the generation config that loading the model would give it."""
    if (directory / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(directory)
    return GenerationConfig.from_model_config(config)
