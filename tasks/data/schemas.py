"""The trajectory table: what every stage adds, and the check at every stage's door.

One row is one sampled response (one prompt before the rollout). A stage adds columns, never
rewrites or drops one, and keeps the order of rows, so each schema is its predecessor's plus a few
fields.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TOKENS = pa.list_(pa.int32())
LOGPROBS = pa.list_(pa.float32())


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _extend(schema: pa.Schema, fields: Iterable[pa.Field]) -> pa.Schema:
    return pa.schema([*schema, *fields])


PROMPTS = pa.schema(
    [
        _required("group_id", pa.int64()),
        _required("prompt_id", pa.string()),
        _required("source", pa.string()),
        _required("prompt_tokens", TOKENS),
        _required("prompt_text", pa.string()),
        _required("answer", pa.string()),
        _required("payload", pa.string()),
    ]
)
"""One row per group: what `select_prompts` gives; `payload` is JSON for the reward, "" if none."""

ROLLOUTS = _extend(
    PROMPTS,
    [
        _required("sample_id", pa.int64()),
        _required("sample_index", pa.int32()),
        _required("response_tokens", TOKENS),
        _required("engine_logprobs", LOGPROBS),
        _required("response_text", pa.string()),
        _required("finish_reason", pa.string()),
        _required("policy_version", pa.int64()),
        _required("policy_digest", pa.string()),
    ],
)
"""One row per sample; an engine log-probability (nats) the engine did not report is null."""

SCORED = _extend(
    ROLLOUTS,
    [
        pa.field("reward", pa.float32(), nullable=True),
        _required("reward_parts", pa.map_(pa.string(), pa.float32())),
        _required("reward_status", pa.string()),
        _required("reward_detail", pa.string()),
    ],
)
"""Null reward: the response could not be scored, which is not the same as a reward of 0."""

ANNOTATED = _extend(
    SCORED,
    [
        _required("advantage", pa.float32()),
        _required("loss_mask", pa.list_(pa.bool_())),
        _required("annotations", pa.string()),
    ],
)
"""What trains; `annotations` says why tokens were masked, comma-separated, "" if none were."""

TEACHER = _extend(
    ANNOTATED,
    [
        _required("teacher_logprobs", LOGPROBS),
        pa.field("teacher_topk_ids", pa.list_(TOKENS), nullable=True),
        pa.field("teacher_topk_logprobs", pa.list_(LOGPROBS), nullable=True),
    ],
)
"""What distils: the teacher's log-probabilities (nats) of the response tokens, and its likeliest
tokens at each of them, most probable first; null where `rl.teacher_topk` is 0."""

ROUTED_EXPERTS = "routed_experts"
OPTIONAL = pa.schema([_required(ROUTED_EXPERTS, pa.list_(pa.list_(pa.int16())))])
"""What a table of responses may have beside its columns: for each token of prompt and response but
the last, the experts that a mixture-of-experts model chose, layer by layer; rows of unequal
models do not mix."""

JUDGED = _extend(SCORED, [pa.field("correct", pa.bool_(), nullable=True)])
"""What is evaluated; null: whether the response is right could not be told."""

OUTCOMES = pa.schema(
    [
        _required("group_id", pa.int64()),
        _required("prompt_id", pa.string()),
        _required("source", pa.string()),
        _required("prompt_text", pa.string()),
        _required("answer", pa.string()),
        _required("num_samples", pa.int32()),
        _required("num_judged", pa.int32()),
        _required("num_correct", pa.int32()),
        _required("num_error", pa.int32()),
        _required("num_timeout", pa.int32()),
        _required("num_truncated", pa.int32()),
        _required("num_tokens", pa.int64()),
        pa.field("mean_reward", pa.float64(), nullable=True),
        _required("pass_at", pa.map_(pa.int32(), pa.float64())),
    ]
)
"""One row per evaluated prompt; `pass_at` lacks every k above `num_judged`, and `mean_reward` is
null where no sample was scored."""

PREFERENCES = pa.schema(
    [
        _required("pair_id", pa.int64()),
        _required("source", pa.string()),
        _required("prompt_text", pa.string()),
        _required("chosen_text", pa.string()),
        _required("rejected_text", pa.string()),
        _required("prompt_tokens", TOKENS),
        _required("chosen_tokens", TOKENS),
        _required("rejected_tokens", TOKENS),
    ]
)
"""One row per preference pair; the completions' tokens follow the prompt's, end token included."""

REFERENCED = _extend(
    PREFERENCES,
    [
        _required("reference_chosen_logprob", pa.float32()),
        _required("reference_rejected_logprob", pa.float32()),
    ],
)
"""What trains: the log-probability (nats) of each whole completion under the reference."""

POINTS = pa.schema(
    [
        _required("pair_id", pa.int64()),
        _required("chosen_point", pa.list_(pa.float32())),
        _required("rejected_point", pa.list_(pa.float32())),
    ]
)
"""One row per pair of points."""

FINISH_REASONS = ("stop", "length", "abort")
REWARD_STATUSES = ("ok", "wrong-format", "error", "timeout")

_STAGES = {
    "select_prompts": PROMPTS,
    "rollout": ROLLOUTS,
    "score": SCORED,
    "annotate": ANNOTATED,
    "teacher_score": TEACHER,
    "prepare_pairs": PREFERENCES,
    "score_reference": REFERENCED,
    "score_held_out": JUDGED,
}
PRODUCER = {name: stage for stage, schema in reversed(_STAGES.items()) for name in schema.names}
"""Which stage adds a column."""

_MAY_HOLD_NULL_ITEMS = "engine_logprobs"
_PER_TOKEN = (
    "engine_logprobs",
    "loss_mask",
    "teacher_logprobs",
    "teacher_topk_ids",
    "teacher_topk_logprobs",
)


def stamp(
    table: pa.Table, *, run: str, step: int, stage: str, policy_version: int | None = None
) -> pa.Table:
    """Return `table` with its origin written into the schema metadata; other metadata stays."""
    origin = {"run": run, "step": str(step), "stage": stage}
    if policy_version is not None:
        origin["policy_version"] = str(policy_version)
    return table.replace_schema_metadata({**read_stamp(table), **origin})


def read_stamp(table: pa.Table | pa.ipc.RecordBatchFileReader) -> dict[str, str]:
    """Return the metadata that `stamp` wrote, as text; empty for a table without any."""
    return {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}


def extend(
    table: pa.Table,
    schema: pa.Schema,
    columns: Mapping[str, pa.Array | pa.ChunkedArray | np.ndarray | list],
    *,
    stage: str,
) -> pa.Table:
    """Return `table` with `columns` added, checked against `schema`; a stamp now names `stage`.

    Raises:
        TypeError: the columns of both together are not those of `schema`.
        ValueError: as `require`.
    """
    for name, values in columns.items():
        field = schema.field(name)
        column = values if isinstance(values, pa.ChunkedArray) else pa.array(values, field.type)
        table = table.append_column(field, column)
    origin = read_stamp(table)
    if origin:
        table = table.replace_schema_metadata({**origin, "stage": stage})
    return require(table, schema, stage=stage)


def require(
    table: pa.Table,
    schema: pa.Schema,
    *,
    stage: str,
    run: str | None = None,
    step: int | None = None,
) -> pa.Table:
    """Return `table` in the order of `schema`, or refuse it.

    Args:
        table: the table to check; its schema metadata is kept and otherwise ignored.
        schema: one of the constants of this module.
        stage: who asks, for the message.
        run: if given, the table must be stamped with this run.
        step: if given, the table must be stamped with this step.

    Raises:
        TypeError: columns are missing, superfluous or of another type, or hold a null.
        ValueError: the stamp is another one, lists of a row differ in length, or ids repeat.
    """
    schema = _extend(schema, [f for f in _optional(schema) if f.name in table.column_names])
    _check_columns(table.schema, schema, stage)
    _check_stamp(table, {"run": run, "step": None if step is None else str(step)}, stage)
    metadata = table.schema.metadata
    columns = [table.column(name) for name in schema.names]
    ordered = pa.Table.from_arrays(columns, schema=schema.with_metadata(metadata))
    _check_nulls(ordered, stage)
    check_rows(ordered, stage=stage)
    return ordered


def check_rows(table: pa.Table, *, stage: str) -> None:
    """Check what holds within and between rows, for the columns that `table` has.

    Raises:
        ValueError: per-token lists of one row differ in length, or ids that must be unique repeat.
    """
    for name in _PER_TOKEN:
        if name in table.column_names:
            _check_lengths(table, name, stage)
    if ROUTED_EXPERTS in table.column_names:
        _check_routed(table, stage)
    if "sample_id" not in table.column_names:
        _check_unique(table, ("pair_id" if "pair_id" in table.column_names else "group_id",), stage)
        return
    _check_unique(table, ("sample_id",), stage)
    _check_unique(table, ("group_id", "sample_index"), stage)


def lengths(column: pa.ChunkedArray) -> np.ndarray:
    """Return the number of items of every list of `column`: int64 [N]."""
    return pc.list_value_length(column).to_numpy().astype(np.int64)


def _optional(schema: pa.Schema) -> pa.Schema:
    return OPTIONAL if "response_tokens" in schema.names else pa.schema([])


def _check_columns(got: pa.Schema, expected: pa.Schema, stage: str) -> None:
    missing = [name for name in expected.names if name not in got.names]
    extra = [name for name in got.names if name not in expected.names]
    problems = [f"lacks {name!r} (added by {PRODUCER.get(name, '?')})" for name in missing]
    problems += [f"has unexpected {name!r}" for name in extra]
    problems += [f"has {name!r} twice" for name in set(got.names) if got.names.count(name) > 1]
    for field in expected:
        if field.name in got.names and field.name not in missing:
            found = got.types[got.names.index(field.name)]
            if found != field.type:
                problems.append(f"has {field.name!r} as {found}, expected {field.type}")
    if problems:
        raise TypeError(f"{stage}: the table {'; '.join(problems)}")


def _check_stamp(table: pa.Table, wanted: dict[str, str | None], stage: str) -> None:
    found = read_stamp(table)
    for key, value in wanted.items():
        if value is not None and found.get(key) != value:
            raise ValueError(
                f"{stage}: the table is of {key} {found.get(key, '(not stamped)')!r}, expected"
                f" {value!r}; it was handed over by another execution: run the stage that made"
                f" it ({found.get('stage', 'unknown')}) again"
            )


def _check_nulls(table: pa.Table, stage: str) -> None:
    for field in table.schema:
        column = table.column(field.name)
        if not field.nullable and column.null_count:
            raise TypeError(f"{stage}: {field.name!r} holds {column.null_count} nulls, expected 0")
        if pa.types.is_list(field.type) and field.name != _MAY_HOLD_NULL_ITEMS:
            items = pc.list_flatten(column).null_count
            if items:
                raise TypeError(f"{stage}: lists of {field.name!r} hold {items} nulls, expected 0")


def _check_lengths(table: pa.Table, name: str, stage: str) -> None:
    expected, column = lengths(table.column("response_tokens")), table.column(name)
    got = lengths(pc.fill_null(column, []) if column.null_count else column)
    wrong = np.flatnonzero((expected != got) & column.is_valid().to_numpy())
    if wrong.size:
        row = wrong[0]
        raise ValueError(
            f"{stage}: {wrong.size} rows differ in length between 'response_tokens' and {name!r};"
            f" first at row {row}: {expected[row]} against {got[row]}"
        )


def _check_routed(table: pa.Table, stage: str) -> None:
    """Check that all tokens but the last of every row have experts, and equally many."""
    tokens = lengths(table["prompt_tokens"]) + lengths(table["response_tokens"])
    got = lengths(table[ROUTED_EXPERTS])
    wrong = np.flatnonzero(got != tokens - 1)
    if wrong.size:
        row = wrong[0]
        raise ValueError(
            f"{stage}: {ROUTED_EXPERTS!r} of row {row} is of {got[row]} tokens, expected "
            f"{tokens[row] - 1}: all of prompt and response but the last"
        )
    counts = np.unique(lengths(pc.list_flatten(table[ROUTED_EXPERTS])))
    if counts.size > 1:
        raise ValueError(
            f"{stage}: tokens in {ROUTED_EXPERTS!r} have {counts.tolist()} choices, expected the "
            "same number: rows of different models are mixed"
        )


def _check_unique(table: pa.Table, names: tuple[str, ...], stage: str) -> None:
    keys = [table.column(name).to_numpy() for name in names]
    order = np.lexsort(keys)
    repeated = np.ones(max(len(order) - 1, 0), dtype=bool)
    for key in keys:
        repeated &= key[order[1:]] == key[order[:-1]]
    if repeated.any():
        row = order[1:][repeated][0]
        values = ", ".join(f"{name}={key[row]}" for name, key in zip(names, keys, strict=True))
        raise ValueError(f"{stage}: {values} occurs more than once, expected unique rows")
