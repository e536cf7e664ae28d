"""One worker process, as its parent sees it: start, ask, be told of its death, kill."""

import json
from collections.abc import Mapping
from typing import Any

from tasks.processes.child import Child

LOAD_TIMEOUT_S = 120.0
"""Start of Python and import of a reward function; not counted as time of a response."""

MESSAGE_TIMEOUT_S = 10
"""Whole seconds in which a message that was begun must have passed."""

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class WorkerLostError(Exception):
    """The worker was lost over a request: status `timeout` or `error`, and what happened."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail


class Worker(Child):
    """A process that runs `tasks.rewards.worker`."""

    def __init__(self, memory_mib: int) -> None:
        super().__init__(
            "tasks.rewards.worker",
            str(memory_mib),
            environment=ENVIRONMENT,
            message_timeout_s=MESSAGE_TIMEOUT_S,
        )

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request.

        Raises:
            WorkerLostError: the process is dead, or does not read.
        """
        try:
            self.connection.send_bytes(json.dumps(request).encode())
        except OSError:
            raise self._death() from None

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Return the next reply.

        Raises:
            WorkerLostError: it did not come within `timeout_s` seconds, or the process died.
        """
        try:
            if self.connection.poll(max(timeout_s, 0.0)):
                return json.loads(self.connection.recv_bytes())
        except (EOFError, OSError, ValueError):
            raise self._death() from None
        raise WorkerLostError("timeout", "it took too long and was killed")

    def _death(self) -> WorkerLostError:
        cause = self.cause_of_death()
        if cause is None:
            return WorkerLostError("error", "the worker process stopped talking and was killed")
        return WorkerLostError("error", f"the worker process died: {cause}")
