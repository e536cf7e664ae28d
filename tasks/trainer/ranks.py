"""A group of processes that compute one thing together, one rank each, on this machine or several.

The group stays alive between calls, so that each rank keeps what it has loaded. It ends with the
first rank that fails or dies, and with the process that started it, however that one ends.
"""

import atexit
import os
import pickle
import shutil
import tempfile
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from tasks.processes.child import Child

GRACE_S = 0.5
"""How long a death may take to be noticed after its peers have complained of a lost connection."""

STORE = "RANK_STORE"
"""Environment variable with the file through which the ranks of one machine find each other."""


class RankError(RuntimeError):
    """A rank failed, died or hangs; the message has its number and traceback."""


class Node(NamedTuple):
    """One of the machines that ranks are spread over.

    Attributes:
        number: from 0.
        num_nodes: how many there are.
    """

    number: int = 0
    num_nodes: int = 1

    def numbers(self, num_ranks: int) -> range:
        """Return the ranks that are its own, of all.

        >>> Node(1, 2).numbers(4)
        range(2, 4)
        """
        own = num_ranks // self.num_nodes
        return range(self.number * own, (self.number + 1) * own)


ALONE = Node()
"""The only machine."""


class RankGroup:
    """Live ranks of this machine.

    Args:
        num_ranks: how many there are on all machines.
        node: which machine this is. Where there are several, ranks meet at `MASTER_ADDR` and
            `MASTER_PORT`.
    """

    def __init__(self, num_ranks: int, node: Node = ALONE) -> None:
        # On one machine they meet in a file and then talk over ports that the system picks: none
        # can be taken.
        self._folder = tempfile.mkdtemp(prefix="ranks-")
        self._numbers, self._size = node.numbers(num_ranks), num_ranks
        shared = _of_one_machine(self._folder) if node.num_nodes == 1 else {}
        self._ranks = [
            Child(
                "tasks.trainer.rank",
                environment={**shared, **_environment(number, self._numbers, num_ranks)},
            )
            for number in self._numbers
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
            for place, rank in enumerate(self._ranks):
                self._send(place, rank.connection, (target, arguments))
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

    def _send(self, place: int, connection: Connection, request: object) -> None:
        try:
            connection.send_bytes(pickle.dumps(request))
        except OSError:
            raise self._death(place) from None

    def _gather(self, timeout_s: float) -> list[Any]:
        waiting = {rank.connection: place for place, rank in enumerate(self._ranks)}
        found: dict[int, Any] = {}
        while waiting:
            ready = wait(list(waiting), timeout_s if found else None)
            if not ready:
                busy = [self._numbers[place] for place in sorted(waiting.values())]
                raise RankError(
                    f"ranks {busy} of {self._size} were still busy "
                    f"{timeout_s:g} s after the others were done; they were killed"
                )
            for connection in ready:
                place = waiting.pop(connection)
                found[place] = self._receive(place, connection)
        return [found[place] for place in sorted(found)]

    def _receive(self, place: int, connection: Connection) -> object:
        try:
            is_error, value = pickle.loads(connection.recv_bytes())  # noqa: S301 - our own rank's
        except (EOFError, OSError):
            raise self._death(place) from None
        if is_error:
            # What a rank says of a lost peer is less than what is known of that peer's end.
            for peer, child in enumerate(self._ranks):
                if child.cause_of_death(GRACE_S / len(self._ranks)) is not None:
                    raise self._death(peer)
            raise RankError(f"rank {self._numbers[place]} of {self._size} failed: {value}")
        return value

    def _death(self, place: int) -> RankError:
        cause = self._ranks[place].cause_of_death() or "it stopped talking"
        return RankError(
            f"rank {self._numbers[place]} of {self._size} died: {cause}; if it was killed, look at "
            "the memory that was left (resources.train.memory, trainer.max_tokens_per_chunk)"
        )


def call(
    target: str, *arguments: object, num_ranks: int, timeout_s: float, node: Node = ALONE
) -> object:
    """Call a function on every rank of the live group and return what the first one here returned.

    A group is started if none is alive; one of another size or timeout is ended.

    Raises:
        RankError: a rank raised, died, or took too long; the next call starts a new group.
    """
    group = _live.get((num_ranks, timeout_s))
    if group is None or not group.is_alive:
        close()
        group = _live[num_ranks, timeout_s] = RankGroup(num_ranks, node)
    return group.call(target, *arguments, timeout_s=timeout_s)[0]


@atexit.register
def close() -> None:
    """End the live group, if there is one."""
    for group in _live.values():
        group.close()
    _live.clear()


_live: dict[tuple[int, float], RankGroup] = {}


def _of_one_machine(folder: str) -> dict[str, str]:
    """Return how ranks find each other where all are here."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return {"GLOO_SOCKET_IFNAME": interface, STORE: os.path.join(folder, "store")}


def _environment(number: int, numbers: range, num_ranks: int) -> dict[str, str]:
    num_threads = str(max((os.cpu_count() or 1) // len(numbers), 1))
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", num_threads),
        "TOKENIZERS_PARALLELISM": "false",
        "RANK": str(number),
        "LOCAL_RANK": str(number - numbers[0]),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(len(numbers)),
    }
