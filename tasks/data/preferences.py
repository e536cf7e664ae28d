"""From preference pairs to a table of token ids, and from the table to the pairs of a step."""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa

from configs.dpo import Preferences
from tasks.data.pairs import Message, Pair, load_pairs
from tasks.data.prompts import select, take
from tasks.data.schemas import PREFERENCES, TOKENS, require

Ids = list[int]


class Encoded(NamedTuple):
    """A pair as token ids; prompt and completions were tokenised apart.

    Attributes:
        prompt: of the prompt, whatever opens the completion included.
        chosen: of the chosen completion with its end token.
        rejected: of the rejected one.
    """

    prompt: Ids
    chosen: Ids
    rejected: Ids


EncodePairs = Callable[[Sequence[Pair]], list[Encoded | None]]
"""Token ids of every pair, in order; None for a text that would smuggle in a control token."""

MAX_NAMED = 5

logger = logging.getLogger(__name__)


class PairPool(NamedTuple):
    """Every usable pair as a PREFERENCES row whose `pair_id` is its row number.

    Attributes:
        table: PREFERENCES.
        cut: names of pairs of which a completion was cut at its end.
        left_out: names of pairs that are not in the table, by reason.
    """

    table: pa.Table
    cut: list[str]
    left_out: dict[str, list[str]]


def prepare_pairs(data: Preferences, encode: EncodePairs) -> tuple[pa.Table, pa.Table]:
    """Return the pairs to train on and the pairs to evaluate on, telling what was left out or cut.

    Raises:
        ValueError: if no pair of a part is usable, or a training pair is held out as well.
    """
    pairs = load_pairs(data)
    shared = {_content(p) for p in pairs.train} & {_content(p) for p in pairs.held_out}
    if shared:
        raise ValueError(
            f"{len(shared)} pairs are both trained on and held out, such as "
            f"{min(shared)[0][:80]!r}; remove them from one of the two"
        )
    pools = [build_pairs(part, encode, max_tokens=data.max_tokens) for part in pairs]
    for name, pool in zip(("training", "held-out"), pools, strict=True):
        _tell(name, pool)
    train, held_out = (pool.table for pool in pools)
    return train, held_out


def build_pairs(pairs: Sequence[Pair], encode: EncodePairs, *, max_tokens: int) -> PairPool:
    """Tokenise pairs once; cut completions that are too long, leave out what cannot train.

    Raises:
        ValueError: if no pair is left.
    """
    rows: list[tuple[Pair, Encoded]] = []
    pool = PairPool(PREFERENCES.empty_table(), [], {})
    for pair, encoded in zip(pairs, encode(pairs), strict=True):
        reason = "spelling a control token" if encoded is None else unusable(encoded, max_tokens)
        if reason:
            pool.left_out.setdefault(reason, []).append(pair.name)
            continue
        fitting = fit(encoded, max_tokens)
        rows.append((pair, fitting))
        if fitting != encoded:
            pool.cut.append(pair.name)
    if not rows:
        counts = ", ".join(f"{len(names)} {reason}" for reason, names in pool.left_out.items())
        raise ValueError(f"none of {len(pairs)} preference pairs is usable: {counts}")
    return pool._replace(table=_table(rows))


def fit(encoded: Encoded, max_tokens: int) -> Encoded:
    """Cut each completion so that it fits after the prompt, which stays whole.

    >>> fit(Encoded([1, 2], [3, 4, 5], [6]), max_tokens=4)
    Encoded(prompt=[1, 2], chosen=[3, 4], rejected=[6])
    """
    room = max_tokens - len(encoded.prompt)
    return Encoded(encoded.prompt, encoded.chosen[:room], encoded.rejected[:room])


def unusable(encoded: Encoded, max_tokens: int) -> str:
    """Return why a pair cannot train, or "".

    >>> unusable(Encoded([1, 2], [3], [4]), max_tokens=2)
    'with a prompt that leaves no room for a completion (data.max_tokens=2)'
    """
    if not encoded.prompt:
        return "without a prompt"
    if len(encoded.prompt) >= max_tokens:
        return f"with a prompt that leaves no room for a completion (data.max_tokens={max_tokens})"
    fitting = fit(encoded, max_tokens)
    return "whose completions are the same tokens" if fitting.chosen == fitting.rejected else ""


def select_pairs(pool: pa.Table, step: int, *, num_pairs: int, data_seed: int) -> pa.Table:
    """Return the pairs of a step, a function of the arguments alone; see `tasks.data.prompts`."""
    picks = select(
        len(pool),
        step,
        num_prompts=num_pairs,
        data_seed=data_seed,
        setting="dpo.pairs_per_step",
    )
    return take(pool, picks, key="pair_id")


def as_text(prompt: str | list[Message]) -> str:
    """Return a prompt as people read it."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def _content(pair: Pair) -> tuple[str, str, str]:
    return as_text(pair.prompt), pair.chosen, pair.rejected


def _table(rows: Sequence[tuple[Pair, Encoded]]) -> pa.Table:
    pairs, encoded = zip(*rows, strict=True)
    columns = [
        list(range(len(rows))),
        [pair.source for pair in pairs],
        [as_text(pair.prompt) for pair in pairs],
        [pair.chosen for pair in pairs],
        [pair.rejected for pair in pairs],
        *(pa.array([list(ids[side]) for ids in encoded], TOKENS) for side in range(3)),
    ]
    table = pa.table(dict(zip(PREFERENCES.names, columns, strict=True)), schema=PREFERENCES)
    return require(table, PREFERENCES, stage="prepare_pairs")


def _tell(name: str, pool: PairPool) -> None:
    told = {f"left out, {reason}": names for reason, names in pool.left_out.items()}
    if pool.cut:
        told["cut at the end of a completion"] = pool.cut
    for reason, names in told.items():
        some = ", ".join(names[:MAX_NAMED]) + (" ..." if len(names) > MAX_NAMED else "")
        logger.warning("%d %s pairs %s: %s", len(names), name, reason, some)
