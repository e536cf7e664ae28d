"""Tables on disk and between tasks: Arrow IPC files, compressed with LZ4.

flytekit's own handler of `pa.Table` goes through Parquet, which is slower, renames the items of
lists, and cannot read from an object store. Importing this module replaces it.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import numpy as np
import pyarrow as pa
from flytekit import FlyteContext
from flytekit.core.hash import HashMethod
from flytekit.models import literals
from flytekit.models.literals import StructuredDatasetMetadata
from flytekit.models.types import StructuredDatasetType
from flytekit.types.structured.structured_dataset import (
    StructuredDataset,
    StructuredDatasetDecoder,
    StructuredDatasetEncoder,
    StructuredDatasetTransformerEngine,
)
from fsspec.core import strip_protocol

FORMAT = "arrow"
FILE_NAME = "00000.arrow"
MAX_ROWS_PER_BATCH = 65_536


def content_digest(table: pa.Table) -> str:
    """Return the SHA-256 of a table's schema, stamp and rows; chunking does not enter it.

    >>> whole = pa.table({"a": [1, 2]})
    >>> parts = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
    >>> content_digest(whole) == content_digest(parts)
    True
    """
    digest = hashlib.sha256()
    metadata = sorted((table.schema.metadata or {}).items())
    plain = table.replace_schema_metadata(dict(metadata) or None)
    # Taking every row writes fresh buffers: no slices, and zeros where a value is null.
    rows = plain.take(np.arange(len(plain)))
    with pa.ipc.new_stream(pa.PythonFile(_Sink(digest.update), "w"), rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    return digest.hexdigest()


def _digest(value: pa.Table | StructuredDataset) -> str:
    """Return the digest of a task's table; one named on a command line comes as a reference."""
    table = value if isinstance(value, pa.Table) else value.open(pa.Table).all()
    return content_digest(table)


Table = Annotated[pa.Table, HashMethod(_digest)]
"""What a task returns: cached tasks downstream hit on equal content, wherever it is stored."""


TableReference = StructuredDataset
"""A table by its place, handed through a graph without being read or written again."""


def write_table(path: str | Path, table: pa.Table, *, durable: bool = True) -> None:
    """Write `table` to the local file `path`, whole or not at all.

    Args:
        path: the file.
        table: what it will hold.
        durable: wait until it is on disk; without, it survives a kill of the process only.

    Raises:
        OSError: the folder cannot be written to, or the disk is full; `path` is as it was.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            _write(file, table)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        _sync_folder(target.parent)


def read_table(path: str | Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table written by `write_table`, all of it or only `columns`, in the order asked for.

    Raises:
        ValueError: a column is not in the file.
    """
    with pa.memory_map(str(path)) as source:
        return _read(source, columns)


def _write(sink: object, table: pa.Table) -> None:
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=MAX_ROWS_PER_BATCH)


def _read(source: pa.NativeFile, columns: Sequence[str] | None) -> pa.Table:
    if not columns:
        return pa.ipc.open_file(source).read_all()
    schema = pa.ipc.open_file(source).schema
    unknown = [name for name in columns if name not in schema.names]
    if unknown:
        raise ValueError(f"no columns {unknown} in the table, which has {schema.names}")
    indices = [schema.get_field_index(name) for name in columns]
    options = pa.ipc.IpcReadOptions(included_fields=indices)
    return pa.ipc.open_file(source, options=options).read_all().select(list(columns))


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _Sink:
    """A write-only file whose bytes go to `update`."""

    closed = False

    def __init__(self, update: Callable[[bytes], None]) -> None:
        self.write = update

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        self.closed = True


class ArrowEncoder(StructuredDatasetEncoder):
    """Writes a task's `pa.Table` output as one Arrow file, on any fsspec store."""

    def __init__(self) -> None:
        super().__init__(pa.Table, None, FORMAT)

    def encode(
        self,
        ctx: FlyteContext,
        structured_dataset: StructuredDataset,
        structured_dataset_type: StructuredDatasetType,
    ) -> literals.StructuredDataset:
        access = ctx.file_access
        uri = structured_dataset.uri or access.join(
            access.raw_output_prefix, access.get_random_string()
        )
        path, table = f"{uri}/{FILE_NAME}", structured_dataset.dataframe
        if access.is_remote(uri):
            buffer = pa.BufferOutputStream()
            _write(buffer, table)
            # One put: a file object would publish what it holds even when writing fails.
            store = access.get_filesystem_for_path(path)
            store.pipe_file(path, buffer.getvalue().to_pybytes())
        else:
            write_table(strip_protocol(path), table, durable=False)
        structured_dataset_type.format = FORMAT
        return literals.StructuredDataset(
            uri=uri, metadata=StructuredDatasetMetadata(structured_dataset_type)
        )


class ArrowDecoder(StructuredDatasetDecoder):
    """Reads a task's `pa.Table` input, only the columns its annotation names if it names any."""

    def __init__(self) -> None:
        super().__init__(pa.Table, None, FORMAT)

    def decode(
        self,
        ctx: FlyteContext,
        flyte_value: literals.StructuredDataset,
        current_task_metadata: StructuredDatasetMetadata,
    ) -> pa.Table:
        path, access = f"{flyte_value.uri}/{FILE_NAME}", ctx.file_access
        declared = current_task_metadata.structured_dataset_type
        columns = [column.name for column in (declared.columns if declared else None) or []]
        if access.is_remote(path):
            store = access.get_filesystem_for_path(path)
            return _read(pa.BufferReader(store.cat_file(path)), columns)
        return read_table(strip_protocol(path), columns)


for _handler in (ArrowEncoder(), ArrowDecoder()):
    StructuredDatasetTransformerEngine.register(
        _handler, default_format_for_type=True, override=True
    )
