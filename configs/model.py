"""The `model` section: where the policy's weights and tokenizer come from."""

from typing import Literal

from pydantic import Field

from configs.base import Section

EMBEDDED_CONTEXT = 128
"""Most tokens, prompt and response together, that the embedded model reads."""


class EmbeddedModel(Section):
    """The small language model that is built and warm-started locally, with nothing downloaded."""

    hidden_size: int = Field(default=128, ge=8)
    """Width of the residual stream."""

    num_layers: int = Field(default=2, ge=1)
    """Decoder layers."""

    num_heads: int = Field(default=4, ge=1)
    """Attention heads; divides `hidden_size`."""

    intermediate_size: int = Field(default=256, ge=8)
    """Width of the feed-forward layer."""

    initializer_range: float = Field(default=0.06, gt=0.0)
    """Standard deviation of the initial weights; 0.02 learns this task several times slower."""

    warm_start_accuracy: float = Field(default=0.45, ge=0.0, lt=1.0)
    """Supervised warm start ends at this greedy accuracy on held-out problems."""

    warm_start_max_steps: int = Field(default=400, ge=0)
    """Most supervised steps; ending them below `warm_start_accuracy` is an error; 0: none."""

    warm_start_learning_rate: float = Field(default=2e-3, gt=0.0)
    """AdamW learning rate of the warm start."""

    warm_start_batch_size: int = Field(default=128, ge=1)
    """Problems per supervised step."""


ALL_LINEAR = "all-linear"
"""Stands for every linear layer but the vocabulary head."""


class Lora(Section):
    """A low-rank adapter (arXiv:2106.09685) that trains in place of the weights, without dropout.

    The log-probabilities of the policy before and after an update must differ by that update alone.
    """

    rank: int = Field(default=0, ge=0)
    """Rank of the adapter; 0: none, and all weights train."""

    alpha: float = Field(default=32.0, gt=0.0)
    """What the adapter adds to a layer is scaled by `alpha / rank`."""

    target_modules: list[str] = [ALL_LINEAR]
    """Names of the layers that are adapted, such as `q_proj`; `all-linear`: every linear layer but
    the vocabulary head."""


class Model(Section):
    """The policy before its first step."""

    source: Literal["embedded", "smollm2", "pretrained"] = "embedded"
    """`embedded` builds the local model; `smollm2` is SmolLM2-135M-Instruct, a chat model, from the
    Python package that ships it; `pretrained` opens `name_or_path`."""

    name_or_path: str = ""
    """Hugging Face directory or hub name of a `pretrained` model."""

    revision: str = ""
    """Hub revision of a `pretrained` model; empty: the default branch."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the trained weights."""

    embedded: EmbeddedModel = EmbeddedModel()
    """Size and warm start of the `embedded` model."""

    lora: Lora = Lora()
    """The adapter that trains, if any."""

    @property
    def identity(self) -> str:
        """Name under which the initial policy is known in logs and manifests."""
        return self.name_or_path if self.source == "pretrained" else self.source
