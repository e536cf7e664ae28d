import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from flytekit import FlyteContext, FlyteContextManager, kwtypes, task, workflow
from flytekit.core.data_persistence import FileAccessProvider
from flytekit.core.type_engine import TypeEngine
from flytekit.models.literals import Literal
from flytekit.utils.asyn import loop_manager
from hypothesis import given
from hypothesis import strategies as st

from tasks.data import arrow
from tasks.data.arrow import Table, content_digest, read_table, write_table
from tasks.data.schemas import SCORED, read_stamp, stamp
from tests.data.tables import annotated, scored

NULLABLE = scored(
    reward=[None, 1.0, float("nan"), 0.0],
    engine_logprobs=[[None, -1.0], [], [-2.0], [None]],
    response_tokens=[[1, 2], [], [3], [4]],
)


def test_a_table_survives_a_file_bit_by_bit(tmp_path: Path) -> None:
    table = stamp(NULLABLE, run="r", step=1, stage="score")
    write_table(tmp_path / "folder" / "t.arrow", table)
    back = read_table(tmp_path / "folder" / "t.arrow")
    assert back.schema.equals(table.schema, check_metadata=True)
    assert content_digest(back) == content_digest(table)
    assert back.column("reward").null_count == 1


def test_only_the_columns_asked_for_are_read_in_that_order(tmp_path: Path) -> None:
    write_table(tmp_path / "t.arrow", scored())
    assert read_table(tmp_path / "t.arrow", ["reward", "group_id"]).column_names == [
        "reward",
        "group_id",
    ]


def test_an_unknown_column_is_named(tmp_path: Path) -> None:
    write_table(tmp_path / "t.arrow", scored())
    with pytest.raises(ValueError, match=r"\['rewrad'\]"):
        read_table(tmp_path / "t.arrow", ["rewrad"])


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "t.arrow"
    write_table(target, scored())

    def full_disk(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(arrow.os, "fsync", full_disk)
    with pytest.raises(OSError, match="disk full"):
        write_table(target, annotated())
    assert read_table(target).equals(scored())
    assert [path.name for path in tmp_path.iterdir()] == ["t.arrow"]


def test_writers_of_one_path_never_mix(tmp_path: Path) -> None:
    target = tmp_path / "t.arrow"
    tables = [scored(reward=[float(i)] * 4) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda table: write_table(target, table), tables))
    assert any(read_table(target).equals(table) for table in tables)


def test_a_table_that_is_open_survives_being_overwritten(tmp_path: Path) -> None:
    write_table(tmp_path / "t.arrow", scored())
    old = read_table(tmp_path / "t.arrow")
    write_table(tmp_path / "t.arrow", scored(reward=[9.0] * 4))
    assert old.equals(scored())


def test_long_tables_are_cut_into_bounded_batches(tmp_path: Path) -> None:
    num_rows = arrow.MAX_ROWS_PER_BATCH + 1
    write_table(tmp_path / "t.arrow", pa.table({"a": np.arange(num_rows)}))
    with pa.memory_map(str(tmp_path / "t.arrow")) as source:
        assert pa.ipc.open_file(source).num_record_batches == 2


@given(cut=st.integers(0, 4), offset=st.integers(0, 9))
def test_the_digest_does_not_depend_on_chunks_slices_or_buffers(cut: int, offset: int) -> None:
    chunked = pa.concat_tables([NULLABLE.slice(0, cut), NULLABLE.slice(cut)])
    padded = pa.concat_tables([*[scored(1)] * offset, NULLABLE]).combine_chunks()
    assert content_digest(chunked) == content_digest(NULLABLE)
    assert content_digest(padded.slice(offset)) == content_digest(NULLABLE)


def test_the_digest_does_not_depend_on_what_lies_under_a_null() -> None:
    hidden = np.array([1.0, 2.0], dtype=np.float32)
    mask = pa.array([True, False]).buffers()[1]
    one = pa.Array.from_buffers(pa.float32(), 2, [mask, pa.py_buffer(hidden)])
    other = pa.array([1.0, None], pa.float32())
    assert one.equals(other)
    assert one.buffers()[1].to_pybytes()[:8] != other.buffers()[1].to_pybytes()[:8]
    digests = {content_digest(pa.table({"reward": array})) for array in (one, other)}
    assert len(digests) == 1


def test_the_digest_sees_values_names_types_order_nulls_and_the_stamp() -> None:
    base = pa.table({"a": pa.array([1, 2]), "b": pa.array([3, None])})
    variants = [
        base,
        pa.table({"a": pa.array([1, 3]), "b": pa.array([3, None])}),
        base.rename_columns(["a", "c"]),
        pa.table({"a": pa.array([1, 2], pa.int32()), "b": pa.array([3, None])}),
        base.take([1, 0]),
        pa.table({"a": pa.array([1, 2]), "b": pa.array([3, 0])}),
        stamp(base, run="r", step=1, stage="score"),
        stamp(base, run="r", step=2, stage="score"),
    ]
    assert len({content_digest(table) for table in variants}) == len(variants)


def test_the_digest_does_not_depend_on_the_order_of_the_stamp() -> None:
    base = pa.table({"a": [1]})
    forward = base.replace_schema_metadata({"run": "r", "step": "1"})
    backward = base.replace_schema_metadata({"step": "1", "run": "r"})
    assert content_digest(forward) == content_digest(backward)


@task
def produce() -> Table:
    return stamp(NULLABLE, run="r", step=1, stage="score")


@task
def digest_of(table: pa.Table) -> str:
    assert table.schema == SCORED
    assert read_stamp(table)["step"] == "1"
    return content_digest(table)


@workflow
def hand_over() -> str:
    return digest_of(table=produce())


def test_tasks_hand_over_exactly_what_was_returned() -> None:
    assert hand_over() == content_digest(stamp(NULLABLE, run="r", step=1, stage="score"))


@pytest.fixture(params=["disk", "memory"])
def context(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FlyteContext]:
    prefix = str(tmp_path / "raw") if request.param == "disk" else "memory://bucket/raw"
    access = FileAccessProvider(str(tmp_path / "sandbox"), prefix)
    builder = FlyteContextManager.current_context().with_file_access(access)
    with FlyteContextManager.with_context(builder) as current:
        yield current


def literal_of(context: FlyteContext, table: pa.Table) -> Literal:
    kind = TypeEngine.to_literal_type(Table)
    # As tasks do it: the synchronous `to_literal` returns an older literal for an equal value.
    return loop_manager.synced(TypeEngine.async_to_literal)(context, table, Table, kind)


def test_a_literal_holds_one_arrow_file_on_any_store(context: FlyteContext) -> None:
    uri = literal_of(context, NULLABLE).scalar.structured_dataset.uri
    store, path = fsspec.core.url_to_fs(uri)
    assert [Path(name).name for name in store.ls(path, detail=False)] == [arrow.FILE_NAME]


def test_a_literal_is_read_back_whole_or_by_column(context: FlyteContext) -> None:
    literal = literal_of(context, NULLABLE)
    assert literal.scalar.structured_dataset.metadata.structured_dataset_type.format == "arrow"
    whole = TypeEngine.to_python_value(context, literal, pa.Table)
    assert content_digest(whole) == content_digest(NULLABLE)
    pruned = Annotated[pa.Table, kwtypes(reward=float, group_id=int)]
    assert TypeEngine.to_python_value(context, literal, pruned).column_names == [
        "reward",
        "group_id",
    ]


def test_equal_tables_have_literals_of_equal_hash_wherever_they_lie(context: FlyteContext) -> None:
    one, two = literal_of(context, NULLABLE), literal_of(context, NULLABLE)
    assert one.scalar.structured_dataset.uri != two.scalar.structured_dataset.uri
    assert one.hash == two.hash == content_digest(NULLABLE)
    assert len(one.hash) == hashlib.sha256().digest_size * 2
