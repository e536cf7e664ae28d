"""A training step on as many processes and machines as the config says.

One process runs here, several in a group. Where there are several machines, each calls `launch`.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa

from configs.plan import AnyConfig
from configs.trainer import Trainer
from tasks.policy.files import PolicyFiles
from tasks.trainer import ranks
from tasks.trainer.rank import named

if TYPE_CHECKING:
    from tasks.trainer.updates import Trained

Others = Mapping[str, PolicyFiles]

MEETING = ("RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables that tell a machine which of several it is, and where their ranks meet."""


def launch(
    body: str,
    config: AnyConfig,
    table: pa.Table,
    files: PolicyFiles,
    to: tuple[Path, Path],
    auxiliary: Others,
) -> "Trained":
    """Call a training step on `trainer.num_processes` ranks and return what it has come to.

    Args:
        body: `module:function` of the step, which takes the other arguments.
        config: the run's.
        table: the rows to train on; ranks read them from one file that they share in memory.
        files: the policy.
        to: empty directories for the new weights and the new trainer state; the first machine's are
            filled.
        auxiliary: other policies that the objective scores with, by role.

    Raises:
        RankError: a rank failed; the message has its number and traceback.
        ValueError: several machines are to train, but this process is not told which it is.
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
            node=_this_node(config.trainer),
        )


def _this_node(trainer: Trainer) -> ranks.Node:
    """Return which machine this is, as the job that started this process on it says."""
    if trainer.num_nodes == 1:
        return ranks.ALONE
    missing = [name for name in MEETING if name not in os.environ]
    if missing:
        raise ValueError(
            f"trainer.num_nodes={trainer.num_nodes}, but {', '.join(missing)} is not set, as it is "
            "in the pods of a task registered for several machines; set trainer.num_nodes=1"
        )
    return ranks.Node(int(os.environ["RANK"]), trainer.num_nodes)


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
    if torch.cuda.is_available():
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        if torch.cuda.device_count() < here:
            raise ValueError(
                f"trainer.num_processes puts {here} processes on this machine, but it has "
                f"{torch.cuda.device_count()} GPUs; expected one for each process"
            )
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group(
        "nccl" if torch.cuda.is_available() else "gloo",
        init_method=f"file://{os.environ[ranks.STORE]}" if ranks.STORE in os.environ else "env://",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=timeout_s),
    )
