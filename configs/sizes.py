"""How large models and accelerators are, for the plan that is printed before a run."""

import json
from pathlib import Path
from typing import Literal, NamedTuple

from configs.model import EmbeddedModel, Model

GpuType = Literal[
    "",
    "nvidia-tesla-t4",
    "nvidia-l4",
    "nvidia-a10g",
    "nvidia-tesla-a100",
    "nvidia-a100-80gb",
    "nvidia-h100",
    "nvidia-h200",
]

GPU_MEMORY_GIB: dict[GpuType, int] = {
    "nvidia-tesla-t4": 16,
    "nvidia-l4": 24,
    "nvidia-a10g": 24,
    "nvidia-tesla-a100": 40,
    "nvidia-a100-80gb": 80,
    "nvidia-h100": 80,
    "nvidia-h200": 141,
}
"""Memory of the GPUs that `resources.*.gpu_type` may name."""


class Shape(NamedTuple):
    """The dimensions of a dense decoder.

    Attributes:
        vocab: rows of the embedding.
        hidden: width of the residual stream.
        layers: decoder layers.
        queries: width of all query heads together.
        keys: width of all key heads together, and of all value heads.
        intermediate: width of the feed-forward layer.
        tied: whether the vocabulary head shares the embedding's weights.
    """

    vocab: int
    hidden: int
    layers: int
    queries: int
    keys: int
    intermediate: int
    tied: bool

    @property
    def num_parameters(self) -> int:
        """Weights, norms and biases aside."""
        attention = 2 * self.hidden * (self.queries + self.keys)
        layer = attention + 3 * self.hidden * self.intermediate
        return self.layers * layer + self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def adapter_parameters_per_rank(self) -> int:
        """Numbers that each rank of an adapter on every layer but the head has."""
        attention = 4 * self.hidden + 2 * (self.queries + self.keys)
        return self.layers * (attention + 3 * (self.hidden + self.intermediate))

    @property
    def values_per_token(self) -> int:
        """Activations of one token that the backward pass of all layers reads."""
        attention = 2 * self.queries + 2 * self.keys
        return self.layers * (6 * self.hidden + attention + 4 * self.intermediate)

    @property
    def cache_per_token(self) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.keys


KNOWN: dict[str, Shape] = {
    "smollm2": Shape(49152, 576, 30, 576, 192, 1536, tied=True),
    "HuggingFaceTB/SmolLM2-135M-Instruct": Shape(49152, 576, 30, 576, 192, 1536, tied=True),
    "Qwen/Qwen2.5-0.5B-Instruct": Shape(151936, 896, 24, 896, 128, 4864, tied=True),
    "Qwen/Qwen2.5-1.5B-Instruct": Shape(151936, 1536, 28, 1536, 256, 8960, tied=True),
    "Qwen/Qwen2.5-3B-Instruct": Shape(151936, 2048, 36, 2048, 256, 11008, tied=True),
    "Qwen/Qwen2.5-7B-Instruct": Shape(152064, 3584, 28, 3584, 512, 18944, tied=False),
    "Qwen/Qwen2.5-14B-Instruct": Shape(152064, 5120, 48, 5120, 1024, 13824, tied=False),
}
"""Models by hub name, so that a plan needs no download."""


def shape_of(model: Model) -> Shape | None:
    """Return the dimensions of a model, or None for one that is neither known nor on disk."""
    if model.source == "embedded":
        return _embedded(model.embedded)
    config = Path(model.name_or_path, "config.json")
    if model.source == "pretrained" and config.is_file():
        return _read(json.loads(config.read_text()))
    return KNOWN.get(model.identity)


VOCABULARY = 16
"""About as many symbols as the embedded model reads."""


def _embedded(model: EmbeddedModel) -> Shape:
    width = model.hidden_size
    return Shape(
        VOCABULARY, width, model.num_layers, width, width, model.intermediate_size, tied=True
    )


def _read(config: dict[str, int]) -> Shape | None:
    """Return the dimensions that a `config.json` states; None for a mixture of experts."""
    try:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        head = config.get("head_dim") or hidden // heads
        return Shape(
            vocab=config["vocab_size"],
            hidden=hidden,
            layers=config["num_hidden_layers"],
            queries=heads * head,
            keys=config.get("num_key_value_heads", heads) * head,
            intermediate=config["intermediate_size"],
            tied=bool(config.get("tie_word_embeddings", False)),
        )
    except KeyError:
        return None
