"""What the tests call on ranks."""

import os
import signal
import sys
import time
from pathlib import Path

RANK = int(os.environ.get("RANK", "0"))


def place() -> tuple[int, int, int]:
    return RANK, int(os.environ["WORLD_SIZE"]), os.getpid()


def fail_on(rank: int) -> None:
    if rank == RANK:
        raise ValueError("no such luck")
    time.sleep(60)


def die_on(rank: int) -> None:
    """The others complain of it at once, as those that wait in a collective do."""
    if rank == RANK:
        os.kill(os.getpid(), signal.SIGKILL)
    raise ConnectionError("connection closed by peer")


def sleep_on(rank: int) -> None:
    if rank == RANK:
        time.sleep(60)


def load_torch() -> None:
    import torch.distributed  # noqa: F401 - ranks that load it later than others are waited for


def hang_before_a_collective(rank: int, timeout_s: float) -> None:
    import torch

    from tasks.trainer.launch import join

    join(timeout_s=timeout_s)
    if rank == RANK:
        time.sleep(60)
    torch.distributed.all_reduce(torch.zeros(1))


def meet(timeout_s: float, failing: int) -> tuple[int, int, float]:
    """Return this rank's two numbers, and the sum over all ranks of the first plus one."""
    import torch

    from tasks.trainer.launch import join

    join(timeout_s=timeout_s)
    total = torch.tensor([RANK + 1.0])
    torch.distributed.all_reduce(total)
    if failing == RANK:
        raise ValueError("no such luck")
    torch.distributed.barrier()
    return RANK, int(os.environ["LOCAL_RANK"]), total.item()


def main(file: str) -> None:
    """Start ranks, write down their process ids, and wait to be killed amid a call."""
    from tasks.trainer import ranks

    group = ranks.RankGroup(2)
    pids = [pid for _, _, pid in group.call("tests.trainer.rank_targets:place", timeout_s=60)]
    Path(file).write_text(" ".join(map(str, pids)))
    group.call("tests.trainer.rank_targets:fail_on", -1, timeout_s=60)


if __name__ == "__main__":
    main(sys.argv[1])
