"""A training step on as many processes as the config says: one runs here, several in a group."""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa

from configs.plan import AnyConfig
from tasks.policy.files import PolicyFiles
from tasks.trainer import ranks
from tasks.trainer.rank import named

if TYPE_CHECKING:
    from tasks.trainer.updates import Trained

Others = Mapping[str, PolicyFiles]


def launch(
    body: str,
    config: AnyConfig,
    table: pa.Table,
    files: PolicyFiles,
    to: tuple[Path, Path],
    auxiliary: Others,
) -> "Trained":
    """Call a training step on `trainer.num_processes` ranks and return what rank 0 returned.

    Args:
        body: `module:function` of the step, which takes the other arguments.
        config: the run's.
        table: the rows to train on; ranks read them from one file that they share in memory.
        files: the policy.
        to: empty directories for the new weights and the new trainer state.
        auxiliary: other policies that the objective scores with, by role.

    Raises:
        RankError: a rank failed; the message has its number and traceback.
    """
    if config.trainer.num_processes == 1:
        return named(body)(config, table, files, to, auxiliary)
    with TemporaryDirectory(prefix="rows-") as folder:
        path = Path(folder, "rows.arrow")
        # Not compressed, so that every rank maps the file instead of holding a copy.
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return ranks.call(
            "tasks.trainer.launch:on_rank",
            *(body, config, path, files, to, auxiliary),
            num_ranks=config.trainer.num_processes,
            timeout_s=config.trainer.rank_timeout_s,
        )


def on_rank(
    body: str,
    config: AnyConfig,
    path: Path,
    files: PolicyFiles,
    to: tuple[Path, Path],
    auxiliary: Others,
) -> "Trained":
    """Join the other ranks, open the rows and take the step."""
    join(timeout_s=config.trainer.rank_timeout_s)
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    return named(body)(config, table, files, to, auxiliary)


def join(*, timeout_s: float) -> None:
    """Connect this rank to the others of its group, once.

    Args:
        timeout_s: how long a rank waits for another one before it fails.

    Raises:
        ValueError: there are GPUs, but fewer than ranks.
    """
    import torch
    from torch import distributed

    if distributed.is_initialized():
        return
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if torch.cuda.is_available():
        if torch.cuda.device_count() < num_ranks:
            raise ValueError(
                f"trainer.num_processes={num_ranks}, but this machine has "
                f"{torch.cuda.device_count()} GPUs; expected one for each process"
            )
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl" if torch.cuda.is_available() else "gloo",
        init_method=f"file://{os.environ[ranks.STORE]}",
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=timeout_s),
    )
