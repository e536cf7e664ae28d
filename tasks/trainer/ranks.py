"""A group of processes that compute one thing together on this machine, one rank each.

The group stays alive between calls, so that each rank keeps what it has loaded. It ends with the
first rank that fails or dies, and with the process that started it, however that one ends.
"""

import atexit
import os
import pickle
import shutil
import tempfile
from multiprocessing.connection import Connection, wait
from typing import Any

from tasks.processes.child import Child

GRACE_S = 0.5
"""How long a death may take to be noticed after its peers have complained of a lost connection."""

STORE = "RANK_STORE"
"""Environment variable with the file through which the ranks of a group find each other."""


class RankError(RuntimeError):
    """A rank failed, died or hangs; the message has its number and traceback."""


class RankGroup:
    """Live ranks.

    Args:
        num_ranks: how many.
    """

    def __init__(self, num_ranks: int) -> None:
        # Ranks meet in a file and then talk over ports that the system picks: none can be taken.
        self._folder = tempfile.mkdtemp(prefix="ranks-")
        self._ranks = [
            Child("tasks.trainer.rank", environment=_environment(rank, num_ranks, self._folder))
            for rank in range(num_ranks)
        ]

    def call(self, target: str, *arguments: object, timeout_s: float) -> list[Any]:
        """Call a function on every rank and return what each returned; a failure ends the group.

        Args:
            target: `module:function`.
            arguments: of the function; they and what it returns are pickled.
            timeout_s: how long a rank may take after another one is done.

        Raises:
            RankError: a rank raised, died, or took too long.
        """
        try:
            for number, rank in enumerate(self._ranks):
                self._send(number, rank.connection, (target, arguments))
            return self._gather(timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill every rank."""
        for rank in self._ranks:
            rank.kill()
        for rank in self._ranks:
            rank.close()
        self._ranks = []
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def is_alive(self) -> bool:
        """Whether it can be called."""
        return bool(self._ranks)

    def _send(self, number: int, connection: Connection, request: object) -> None:
        try:
            connection.send_bytes(pickle.dumps(request))
        except OSError:
            raise self._death(number) from None

    def _gather(self, timeout_s: float) -> list[Any]:
        waiting = {rank.connection: number for number, rank in enumerate(self._ranks)}
        found: dict[int, Any] = {}
        while waiting:
            ready = wait(list(waiting), timeout_s if found else None)
            if not ready:
                raise RankError(
                    f"ranks {sorted(waiting.values())} of {len(self._ranks)} were still busy "
                    f"{timeout_s:g} s after the others were done; they were killed"
                )
            for connection in ready:
                number = waiting.pop(connection)
                found[number] = self._receive(number, connection)
        return [found[number] for number in sorted(found)]

    def _receive(self, number: int, connection: Connection) -> object:
        try:
            is_error, value = pickle.loads(connection.recv_bytes())  # noqa: S301 - our own rank's
        except (EOFError, OSError):
            raise self._death(number) from None
        if is_error:
            # What a rank says of a lost peer is less than what is known of that peer's end.
            for peer, child in enumerate(self._ranks):
                if child.cause_of_death(GRACE_S / len(self._ranks)) is not None:
                    raise self._death(peer)
            raise RankError(f"rank {number} of {len(self._ranks)} failed: {value}")
        return value

    def _death(self, number: int) -> RankError:
        cause = self._ranks[number].cause_of_death() or "it stopped talking"
        return RankError(
            f"rank {number} of {len(self._ranks)} died: {cause}; if it was killed, look at the "
            "memory that was left (resources.train.memory, trainer.max_tokens_per_chunk)"
        )


def call(target: str, *arguments: object, num_ranks: int, timeout_s: float) -> object:
    """Call a function on every rank of the live group and return what rank 0 returned.

    A group is started if none is alive; one of another size or timeout is ended.

    Raises:
        RankError: a rank raised, died, or took too long; the next call starts a new group.
    """
    group = _live.get((num_ranks, timeout_s))
    if group is None or not group.is_alive:
        close()
        group = _live[num_ranks, timeout_s] = RankGroup(num_ranks)
    return group.call(target, *arguments, timeout_s=timeout_s)[0]


@atexit.register
def close() -> None:
    """End the live group, if there is one."""
    for group in _live.values():
        group.close()
    _live.clear()


_live: dict[tuple[int, float], RankGroup] = {}


def _environment(rank: int, num_ranks: int, folder: str) -> dict[str, str]:
    num_threads = str(max((os.cpu_count() or 1) // num_ranks, 1))
    defaults = {"OMP_NUM_THREADS": num_threads, "GLOO_SOCKET_IFNAME": "lo"}
    return {
        **{name: os.environ.get(name, value) for name, value in defaults.items()},
        "TOKENIZERS_PARALLELISM": "false",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        STORE: os.path.join(folder, "store"),
    }
