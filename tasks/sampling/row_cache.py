"""The key-value cache of rows that come and go while others are being written.

Dimensions: `B` rows, `H` heads, `S` columns, `D` width of a head.
"""

from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedConfig
from transformers.cache_utils import DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

SPARE_COLUMNS = 64
"""Most tokens that are appended in place before the cache is laid out anew."""

_KEPT_BY_COLUMN = (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer)


class RowCache(Cache):
    """Keys and values of every row, all rows ending at the right edge.

    Where a row stands says nothing about its positions, which the model is told; what lies to the
    left of it is masked. A row's columns are adjacent, so that a sliding window, which counts
    columns, is right too; its layers keep all columns nevertheless.
    """

    def __init__(self, *, spare_columns: int) -> None:
        super().__init__(layer_class_to_replicate=_Layer)
        self._spare_columns = min(spare_columns, SPARE_COLUMNS)
        self._width = 0

    def is_full(self) -> bool:
        """Return whether the next token needs `hold` first."""
        return self.get_seq_length() == self._width + self._spare_columns

    def hold(self, parts: list[tuple[Cache, Tensor]], width: int) -> None:
        """Hold these rows of these caches, of which this may be one, at `width` columns each.

        Columns are cut off or added on the left. Layers are replaced one by one, so that no more
        than one of them is there twice.
        """
        parts = [(cache, rows) for cache, rows in parts if len(rows)]
        size = width + self._spare_columns
        for index in range(len(parts[-1][0])):
            layers = [(cache.layers[index], rows) for cache, rows in parts]
            self.layers[index : index + 1] = [_laid_out(layers, width, size)]
        self._width = width


def check_cache(config: PreTrainedConfig) -> None:
    """Refuse a model whose layers keep a state instead of keys and values.

    Raises:
        ValueError: naming the kinds of layers.
    """
    layers = DynamicCache(config=config).layers
    others = sorted(
        {type(layer).__name__ for layer in layers if type(layer) not in _KEPT_BY_COLUMN}
    )
    if others:
        raise ValueError(
            f"rollout.engine=transformers got a model whose cache has {', '.join(others)}, "
            "expected attention layers that keep keys and values; set rollout.engine=vllm"
        )


class _Layer(DynamicLayer):
    """Buffers [B, H, S + spare, D] whose first columns, `keys` and `values`, are in use."""

    buffers: tuple[Tensor, Tensor]

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Append columns in place and return all that are in use."""
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        self.buffers[0][:, :, start:end] = key_states
        self.buffers[1][:, :, start:end] = value_states
        return self.use(end)

    def use(self, width: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of the first `width` columns, from now on those in use."""
        self.keys, self.values = (buffer[:, :, :width] for buffer in self.buffers)
        return self.keys, self.values


def _laid_out(parts: list[tuple[DynamicLayer, Tensor]], width: int, size: int) -> _Layer:
    """Return one layer of these rows; a layer that shares another's keys and values stays empty."""
    layer, (first, _) = _Layer(), parts[0]
    if first.keys is not None and first.values is not None:
        layer.lazy_initialization(first.keys, first.values)
        layer.buffers = (
            _joined([(part.keys, rows) for part, rows in parts], width, size),
            _joined([(part.values, rows) for part, rows in parts], width, size),
        )
        layer.use(width)
    return layer


def _joined(parts: list[tuple[Tensor, Tensor]], width: int, size: int) -> Tensor:
    """Return these rows of these tensors, ending at column `width` of `size`.

    Zeros stand to the left of them, as what is masked is still multiplied by 0.
    """
    states_BHSD, _ = parts[0]
    num_rows, num_heads = sum(len(rows) for _, rows in parts), states_BHSD.shape[1]
    joined = states_BHSD.new_empty(num_rows, num_heads, size, states_BHSD.shape[3])
    start = 0
    for states_BHSD, rows in parts:
        place = joined[start : start + len(rows), :, :width]
        used = min(width, states_BHSD.shape[2])
        place[:, :, : width - used].zero_()
        place[:, :, width - used :] = states_BHSD[:, :, -used:].index_select(0, rows)
        start += len(rows)
    return joined
