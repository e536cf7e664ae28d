"""Sampling with transformers: batched, with a key-value cache, in the process of the policy.

A finished response leaves its place in the batch to the next one waiting. Dimensions: `P` prompts,
`G` samples per prompt, `B` rows decoded at once, `S` prompt positions, `T` response positions,
`V` vocabulary, `R` choices of experts per token, 0 where they are not recorded.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from tasks.policy.routing import Routers, recording
from tasks.sampling.drawing import draw
from tasks.sampling.row_cache import RowCache, check_cache
from tasks.sampling.rows import Rows
from tasks.sampling.sampler import Completion, EngineFacts, SamplingParams, group_uniforms

REFILL_SHARE = 0.25
"""Finished rows leave the batch, and others take their places, once they are this share of it."""


class Predicted(NamedTuple):
    """What a forward pass gives.

    Attributes:
        logits_BV: logits after the last position, in float32.
        experts_BSR: where each position was sent, int16.
    """

    logits_BV: Tensor
    experts_BSR: Tensor


@dataclass(frozen=True, kw_only=True)
class HfSampler:
    """Samples from a transformers model.

    Attributes:
        model: a causal language model; its mode and its cache setting are restored after use.
        stop_token_ids: tokens that the model and its tokenizer declare an end.
        pad_token_id: any token; what stands at padding is never attended to.
        recorded: the routers whose choices are to be recorded, if any.
    """

    model: PreTrainedModel
    stop_token_ids: frozenset[int]
    pad_token_id: int
    recorded: Routers | None = None

    def sample(
        self, prompts: list[list[int]], group_ids: list[int], params: SamplingParams
    ) -> list[list[Completion]]:
        """Return `params.num_samples` completions for every prompt, in order.

        Raises:
            ValueError: if a prompt is empty, or a layer of the model has no keys and values.
        """
        if not all(prompts):
            raise ValueError(f"prompt {prompts.index([])} has no token; every prompt needs one")
        check_cache(self.model.config)
        with _inference(self.model):
            waiting = _Waiting(self, prompts, group_ids, params)
            written = _Batch(self, waiting, params).write_all()
        size = params.num_samples
        return [
            [waiting.whole(prompt, written[prompt * size + sample]) for sample in range(size)]
            for prompt in range(len(prompts))
        ]

    @property
    def num_choices(self) -> int:
        """`R`."""
        return self.recorded.num_choices if self.recorded else 0

    def facts(self) -> EngineFacts:
        """Return the version of transformers."""
        return EngineFacts(engine="transformers", engine_version=transformers.__version__)

    def predict(
        self, input_ids: Tensor, mask: Tensor, positions: Tensor, cache: Cache
    ) -> Predicted:
        """Compute some more positions of every row; the cache grows by them."""
        inputs = {"input_ids": input_ids, "attention_mask": mask, "position_ids": positions}
        settings = {"cache": cache, "use_cache": True, "logits_to_keep": 1}
        shape = (*input_ids.shape, self.num_choices)
        with recording(self.recorded) if self.recorded else nullcontext() as experts:
            logits = self.model(**inputs, **settings).logits[:, -1].float()
        chosen = experts() if experts else input_ids.new_zeros(shape)
        return Predicted(logits, chosen.view(shape).short())


@dataclass(frozen=True, kw_only=True)
class _Prompts:
    """Prompts that were computed, and what their samples begin with."""

    cache: Cache
    logits_PV: Tensor
    lengths_P: Tensor
    uniforms_BT: Tensor
    first_id: int


@dataclass(frozen=True, kw_only=True)
class _Newcomers:
    """Samples of computed prompts: rows, and where in the cache each one's prompt stands."""

    rows: Rows
    logits_BV: Tensor
    cache: Cache
    places_B: Tensor


class _Waiting:
    """The samples not yet begun, in order; a prompt is computed once, at its first sample."""

    def __init__(
        self,
        engine: HfSampler,
        prompts: list[list[int]],
        group_ids: list[int],
        params: SamplingParams,
    ) -> None:
        self._engine, self._params = engine, params
        self._prompts, self._group_ids = prompts, group_ids
        self._computed: _Prompts | None = None
        self._experts: list[np.ndarray] = []
        self._num_computed = 0
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._prompts) * self._params.num_samples - self._next_id

    def take(self, count: int) -> list[_Newcomers]:
        """Begin the next `count` samples, or all that are left."""
        taken = []
        count = min(count, len(self))
        while count:
            part = self._take_computed(count)
            taken.append(part)
            count -= len(part.rows)
        return taken

    def whole(self, prompt: int, completion: Completion) -> Completion:
        """Return a completion with the experts of its prompt before its own."""
        if completion.experts is None:
            return completion
        experts = np.concatenate([self._experts[prompt], completion.experts])
        return replace(completion, experts=experts)

    def _take_computed(self, count: int) -> _Newcomers:
        """Begin samples of the prompts computed last; if none is left, compute the next ones."""
        size = self._params.num_samples
        if self._computed is None or self._next_id == self._num_computed * size:
            self._computed = self._compute(-(-count // size))
        computed = self._computed
        end = min(self._next_id + count, self._num_computed * size)
        ids_B = torch.arange(self._next_id, end, device=computed.lengths_P.device)
        self._next_id = end
        rows_B = ids_B - computed.first_id
        places_B = rows_B // size
        return _Newcomers(
            rows=Rows.begin(
                ids_B,
                computed.uniforms_BT[rows_B],
                computed.lengths_P[places_B],
                self._engine.num_choices,
            ),
            logits_BV=computed.logits_PV[places_B],
            cache=computed.cache,
            places_B=places_B,
        )

    def _compute(self, count: int) -> _Prompts:
        first = self._num_computed
        prompts = self._prompts[first : first + count]
        self._num_computed += len(prompts)
        device = self._engine.model.device
        input_ids, mask = _left_padded(prompts, self._engine.pad_token_id, device)
        cache = DynamicCache()
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits_PV, experts_PSR = self._engine.predict(input_ids, mask, positions, cache)
        chosen = zip(experts_PSR, mask.bool(), strict=True)
        self._experts += [experts[used].cpu().numpy() for experts, used in chosen]
        ids = self._group_ids[first : first + count]
        draws = np.concatenate([group_uniforms(group_id, self._params) for group_id in ids])
        return _Prompts(
            cache=cache,
            logits_PV=logits_PV,
            lengths_P=mask.sum(1),
            uniforms_BT=torch.from_numpy(draws).to(device),
            first_id=first * self._params.num_samples,
        )


class _Batch:
    """The rows being written, in step, and their cache."""

    def __init__(self, engine: HfSampler, waiting: _Waiting, params: SamplingParams) -> None:
        device = engine.model.device
        stops = sorted(engine.stop_token_ids.union(params.stop_token_ids))
        self._engine, self._waiting, self._params = engine, waiting, params
        self._stops = torch.tensor(stops, device=device, dtype=torch.int64)
        nobody = torch.zeros(0, device=device, dtype=torch.int64)
        nothing = torch.zeros(0, params.max_tokens, device=device)
        self._rows = Rows.begin(nobody, nothing, nobody, engine.num_choices)
        self._cache = RowCache(spare_columns=params.max_tokens)
        self._written: dict[int, Completion] = {}

    def write_all(self) -> dict[int, Completion]:
        """Return every response by its number."""
        while len(self._rows) or len(self._waiting):
            if self._is_due():
                self._refill()
            else:
                self._step()
        return self._written

    def _is_due(self) -> bool:
        num_open = int(self._rows.is_open_B.sum())
        return num_open <= (1 - REFILL_SHARE) * len(self._rows) or self._cache.is_full()

    def _refill(self) -> None:
        """Take out finished rows, admit as many others as there is room for, trim the cache."""
        is_open_B = self._rows.is_open_B
        self._written |= self._rows.at(~is_open_B).completions(self._stops)
        keep = is_open_B.nonzero()[:, 0]
        newcomers = self._waiting.take(self._params.batch_size - len(keep))
        for part in newcomers:
            self._write(part.rows, part.logits_BV)
        self._rows = Rows.joined([self._rows.at(keep), *(part.rows for part in newcomers)])
        if len(self._rows):
            places = [(part.cache, part.places_B) for part in newcomers]
            width = int(self._rows.seen().max()) - 1
            self._cache.hold([(self._cache, keep), *places], width)

    def _step(self) -> None:
        """Compute the token drawn last, and draw the next, for every row."""
        seen_B = self._rows.seen()
        width = self._cache.get_seq_length() + 1
        columns = torch.arange(width, device=seen_B.device)
        mask = (columns >= width - seen_B[:, None]).long()
        last_B1, positions_B1 = self._rows.last_B[:, None], seen_B[:, None] - 1
        predicted = self._engine.predict(last_B1, mask, positions_B1, self._cache)
        self._rows.route(predicted.experts_BSR[:, 0])
        self._write(self._rows, predicted.logits_BV)

    def _write(self, rows: Rows, logits_BV: Tensor) -> None:
        drawn = draw(logits_BV, rows.next_uniforms(), self._params.temperature)
        rows.write(*drawn, self._stops)


def _left_padded(
    prompts: list[list[int]], pad_token_id: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return token ids and attention mask [P, S]; the mask comes from lengths, not from ids."""
    width = max(map(len, prompts))
    ids = [[pad_token_id] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


@contextmanager
def _inference(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode without gradients; the model's own mode comes back afterwards."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
