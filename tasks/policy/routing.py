"""Which experts a mixture-of-experts model sends a token to: recorded, and replayed.

Where two experts are nearly as good, rounding decides, and a trainer that picks another one than
the sampler did scores another distribution. Replaying the sampler's choices removes that (rollout
routing replay, Ma et al. 2025, arXiv 2510.11370); how much each chosen expert counts is computed
anew, so that the router still trains.

Dimensions: `N` tokens, `E` experts, `K` experts per token, `R` choices of a token: `K` for each
layer that has experts, layer by layer.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.return_types import topk as TopK  # noqa: N812 - a type
from transformers import PreTrainedModel

FREE = -1
"""In the place of an expert: the router chooses."""

_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


class Routers(NamedTuple):
    """The routers of a model.

    Attributes:
        num_experts: among which one chooses.
        top_k: how many it chooses for a token.
        num_layers: how many choose.
    """

    num_experts: int
    top_k: int
    num_layers: int

    @property
    def num_choices(self) -> int:
        """`R`."""
        return self.num_layers * self.top_k

    def is_choice(self, scores: Tensor, chosen: Tensor) -> bool:
        """Return whether a selection of the highest scores is one of experts."""
        return scores.shape[-1] == self.num_experts and chosen.shape[-1] == self.top_k


def routers_of(model: PreTrainedModel) -> Routers | None:
    """Return the routers of a model, or None if none of its layers chooses among experts.

    They are counted in a forward pass over two tokens.
    """
    config = model.config.get_text_config()
    counts = [getattr(config, name, None) for name in _EXPERT_COUNTS]
    num_experts = next((count for count in counts if count), None)
    top_k = getattr(config, "num_experts_per_tok", None)
    if num_experts is None or not top_k:
        return None
    routers = Routers(num_experts, top_k, num_layers=0)
    with torch.no_grad(), recording(routers) as recorded:
        model(torch.arange(2, device=model.device)[None], use_cache=False)
    num_layers = recorded().shape[1] // top_k
    return routers._replace(num_layers=num_layers) if num_layers else None


class _Routing(TorchFunctionMode):
    """Sees every choice of experts, in the order in which a forward pass makes them."""

    def __init__(self, routers: Routers, decide: Callable[[Tensor, TopK], TopK]) -> None:
        super().__init__()
        self._routers, self._decide = routers, decide

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        found = func(*args, **(kwargs or {}))
        if func in (torch.topk, Tensor.topk):
            scores = args[0] if args else (kwargs or {})["input"]
            if self._routers.is_choice(scores, found.indices):
                return self._decide(scores, found)
        return found


@contextmanager
def recording(routers: Routers) -> Iterator[Callable[[], Tensor]]:
    """Record what routers choose in a forward pass; give the function that returns it [N, R]."""
    layers: list[Tensor] = []

    def record(_: Tensor, found: TopK) -> TopK:
        layers.append(found.indices.reshape(-1, routers.top_k))
        return found

    with _Routing(routers, record):
        yield lambda: torch.cat(layers, 1) if layers else torch.zeros(0, 0)


class _Replay:
    """Choices [N, R] that routers are to make, from some layer on."""

    def __init__(self, routers: Routers, choices_NR: Tensor, *, layer: int = 0) -> None:
        self._routers, self._choices_NR, self._layer = routers, choices_NR, layer

    @contextmanager
    def __call__(self) -> Iterator[None]:
        token = _ACTIVE.set(self)
        try:
            with _Routing(self._routers, self._decide):
                yield
        finally:
            _ACTIVE.reset(token)

    def from_here(self) -> "_Replay":
        """Return the same for the layers to come."""
        return _Replay(self._routers, self._choices_NR, layer=self._layer)

    def _decide(self, scores: Tensor, found: TopK) -> TopK:
        start = self._layer * self._routers.top_k
        self._layer += 1
        wanted = self._choices_NR[:, start : start + self._routers.top_k]
        wanted = wanted.reshape(found.indices.shape).to(found.indices.dtype)
        chosen = torch.where(wanted == FREE, found.indices, wanted)
        return TopK((scores.gather(-1, chosen), chosen))


_ACTIVE: ContextVar[_Replay | None] = ContextVar("_ACTIVE", default=None)


def replaying(routers: Routers, choices_NR: Tensor) -> AbstractContextManager[None]:
    """Let a forward pass over `N` tokens choose these experts, where they are not `FREE`.

    Raises:
        ValueError: there are more or fewer choices per token than the model makes.
    """
    if choices_NR.shape[1] != routers.num_choices:
        raise ValueError(
            f"routed_experts has {choices_NR.shape[1]} choices per token, expected "
            f"{routers.num_choices}: the model has {routers.num_layers} layers of experts that "
            f"choose {routers.top_k} each; another model has sampled these rows"
        )
    return _Replay(routers, choices_NR)()


def recompute_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of a layer's first and second computation, for `checkpoint`.

    The second, in the backward pass, makes the choices of the first.
    """
    active = _ACTIVE.get()
    return nullcontext(), nullcontext() if active is None else active.from_here()()
