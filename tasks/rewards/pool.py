"""Worker processes that score responses, and are killed and replaced when one takes too long.

A thread per worker hands out small batches and waits for one reply per response, each with its own
time limit. Threads, not signals, keep the time, so that scoring works outside the main thread.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tasks.rewards.reward import Score
from tasks.rewards.seat import Job, Loaded, Row, Seat

MAX_WORKERS = 8
LARGEST_BATCH = 16
BATCHES_PER_WORKER = 4
"""At least so many, if there are enough rows, so that no worker waits long for the last one."""


class Pool:
    """A number of workers, each started when it first gets something to do."""

    def __init__(self, num_workers: int, memory_mib: int) -> None:
        self.seats = [Seat(memory_mib) for _ in range(num_workers)]
        self._lock = threading.Lock()

    def load(self, job: Job) -> Loaded:
        """Return what a worker says of the job's function.

        Raises:
            ValueError: the function cannot be loaded.
        """
        with self._lock:
            return self.seats[0].load(job)

    def score(
        self, job: Job, rows: Sequence[Row], *, max_failures: int | None = None
    ) -> list[Score | None]:
        """Return a score for every row, in order.

        Args:
            job: what to call.
            rows: response text, answer and payload of each.
            max_failures: once more rows than this could not be scored, the rows that were not
                begun are left out (None).

        Raises:
            TypeError: the function does not return scores.
            ValueError: the function cannot be loaded.
        """
        with self._lock:
            round_ = _Round(job, rows, len(rows) if max_failures is None else max_failures)
            batches = round_.split(len(self.seats))
            seats = self.seats[: len(batches)]
            with ThreadPoolExecutor(max(len(seats), 1), "reward") as threads:
                tasks = [threads.submit(round_.work, seat, batches) for seat in seats]
                try:
                    for task in tasks:
                        task.result()
                except BaseException:
                    round_.stopped = True
                    for seat in seats:
                        seat.interrupt()
                    raise
            return round_.scores

    def close(self) -> None:
        """End all workers; the next use starts new ones."""
        with self._lock:
            for seat in self.seats:
                seat.close()


class _Round:
    """One call of `Pool.score`: what its threads share."""

    def __init__(self, job: Job, rows: Sequence[Row], max_failures: int) -> None:
        self.job = job
        self.rows = rows
        self.scores: list[Score | None] = [None] * len(rows)
        self.max_failures = max_failures
        self.num_failures = 0
        self.stopped = False

    def split(self, num_workers: int) -> deque[range]:
        size = -(-len(self.rows) // (num_workers * BATCHES_PER_WORKER))
        size = min(max(size, 1), LARGEST_BATCH)
        starts = range(0, len(self.rows), size)
        return deque(range(start, min(start + size, len(self.rows))) for start in starts)

    def work(self, seat: Seat, batches: deque[range]) -> None:
        """Score batches until none is left, or too many rows have failed."""
        with contextlib.suppress(IndexError):
            while not self.stopped:
                self._score(seat, batches.popleft())

    def _score(self, seat: Seat, batch: range) -> None:
        for position, score in seat.score(self.job, [self.rows[i] for i in batch]):
            self.scores[batch[position]] = score
            self.num_failures += score.value is None
            self.stopped |= self.num_failures > self.max_failures
            if self.stopped:
                return


_pool: Pool | None = None
_owner = (0, 0, 0)
_pool_lock = threading.Lock()


def resident_pool(num_workers: int, memory_mib: int) -> Pool:
    """Return the pool of this process; it stays from step to step, and ends when the process does.

    Args:
        num_workers: 0 means one per CPU, at most `MAX_WORKERS`.
        memory_mib: limit of each worker; 0 means none.
    """
    global _pool, _owner
    num_workers = num_workers or min(os.cpu_count() or 1, MAX_WORKERS)
    # The process is part of the key: a fork must not use, or end, the workers of its parent.
    owner = (os.getpid(), num_workers, memory_mib)
    with _pool_lock:
        if _pool is None or owner != _owner:
            if _pool is not None and _owner[0] == owner[0]:
                _pool.close()
            _pool, _owner = Pool(num_workers, memory_mib), owner
        return _pool


def close_resident_pool() -> None:
    """End the workers of this process, if it has any."""
    with _pool_lock:
        if _pool is not None and _owner[0] == os.getpid():
            _pool.close()
