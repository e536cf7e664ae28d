"""A place for one worker: what a lost worker costs, and whom."""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.rewards.reward import Score
from tasks.rewards.worker_process import LOAD_TIMEOUT_S, Worker, WorkerLostError

GRACE_S = 1.0
"""Async functions time themselves; they are killed only when they are this late."""

Row = Sequence[str]
"""Response text, answer, payload."""


@dataclass(frozen=True)
class Job:
    """What to call, with what, and for how long.

    Attributes:
        provider: a name as in `reward.provider`.
        arguments: the configured ones; the worker picks those that the function takes.
        timeout_s: limit of one response, or of one call of a batched function.
    """

    provider: str
    arguments: Mapping[str, Any]
    timeout_s: float


@dataclass(frozen=True)
class Loaded:
    """What a worker tells of the function that it loaded."""

    arguments: Mapping[str, Any]
    together: bool
    is_async: bool
    reads: frozenset[str]


@dataclass
class Attempt:
    """What came of one batch: scores by position, and why there are fewer than rows."""

    scores: dict[int, Score] = field(default_factory=dict)
    lost: WorkerLostError | None = None
    split: bool = False

    def take(self, reply: Mapping[str, Any]) -> None:
        """Note a reply; raise `TypeError` if it is that the function does not give scores."""
        if "misuse" in reply:
            raise TypeError(reply["misuse"])
        if "split" in reply:
            self.split = True
            return
        names = ("value", "status", "parts", "detail")
        self.scores[reply["row"]] = Score(*(reply[name] for name in names))


class Seat:
    """Filled with a worker when one is needed, and refilled when that one is lost."""

    def __init__(self, memory_mib: int) -> None:
        self._memory_mib = memory_mib
        self._worker: Worker | None = None
        self._loaded: dict[str, Loaded] = {}

    def load(self, job: Job) -> Loaded:
        """Return what the worker says of the job's function, having started it if need be.

        Raises:
            ValueError: the function cannot be loaded.
        """
        return self._prepare(job)[1]

    def score(self, job: Job, rows: Sequence[Row]) -> Iterator[tuple[int, Score]]:
        """Yield position and score of every row, whatever becomes of the worker meanwhile.

        Where rows are scored in turn, a lost worker is charged to the row that it was at. Where
        they are scored together, all that are open are tried again, each alone.

        Raises:
            TypeError: the function does not return scores.
            ValueError: the function cannot be loaded.
        """
        waiting = deque([list(range(len(rows)))])
        while waiting:
            batch = waiting.popleft()
            worker, loaded = self._prepare(job)
            attempt = self._attempt(worker, job, loaded, [rows[index] for index in batch])
            yield from ((batch[i], score) for i, score in attempt.scores.items())
            left = [index for i, index in enumerate(batch) if i not in attempt.scores]
            if attempt.lost and (len(batch) == 1 or not loaded.together):
                yield left.pop(0), _charge(attempt.lost, job)
            if loaded.together:
                waiting.extend([index] for index in left)
            elif left:
                waiting.append(left)

    def interrupt(self) -> None:
        """Kill the worker while another thread waits for it."""
        if self._worker is not None:
            self._worker.kill()

    def close(self) -> None:
        """End the worker."""
        worker, self._worker, self._loaded = self._worker, None, {}
        if worker is not None:
            worker.close()

    def _prepare(self, job: Job) -> tuple[Worker, Loaded]:
        if self._worker is None or not self._worker.is_alive():
            self.close()
            self._worker = Worker(self._memory_mib)
        loaded = self._loaded.get(job.provider)
        if loaded is None or loaded.arguments != job.arguments:
            loaded = self._loaded[job.provider] = self._ask_to_load(self._worker, job)
        return self._worker, loaded

    def _ask_to_load(self, worker: Worker, job: Job) -> Loaded:
        try:
            worker.send({"provider": job.provider, "arguments": dict(job.arguments)})
            reply = worker.receive(LOAD_TIMEOUT_S)
        except WorkerLostError as lost:
            self.close()
            raise ValueError(
                f"reward.provider={job.provider!r} cannot be imported: {lost.detail}"
            ) from None
        if "refused" in reply:
            raise ValueError(reply["refused"])
        return Loaded(
            job.arguments, reply["together"], reply["is_async"], frozenset(reply["reads"])
        )

    def _attempt(self, worker: Worker, job: Job, loaded: Loaded, rows: Sequence[Row]) -> Attempt:
        result = Attempt()
        limit_s = job.timeout_s + (GRACE_S if loaded.is_async else 0.0)
        started = time.monotonic()
        try:
            worker.send({"provider": job.provider, "rows": rows, "timeout_s": job.timeout_s})
            while len(result.scores) < len(rows) and not result.split:
                spent_s = time.monotonic() - started if loaded.together else 0.0
                result.take(worker.receive(limit_s - spent_s))
        except (WorkerLostError, TypeError) as error:
            self.close()
            if isinstance(error, TypeError):
                raise
            result.lost = error
        return result


def _charge(lost: WorkerLostError, job: Job) -> Score:
    limit = f"longer than reward.timeout_s={job.timeout_s:g}; its worker was killed"
    return Score(None, lost.status, detail=limit if lost.status == "timeout" else lost.detail)
