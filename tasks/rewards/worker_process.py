"""One worker process, as its parent sees it: start, ask, be told of its death, kill."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

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


class Worker:
    """A process that runs `tasks.rewards.worker`, in a process group of its own."""

    def __init__(self, memory_mib: int) -> None:
        ours, theirs = socket.socketpair()
        read_end, self._lifeline = os.pipe()
        # A new interpreter, not a fork: the parent may hold torch, its threads and a device.
        command = [sys.executable, "-P", "-m", "tasks.rewards.worker"]
        numbers = (theirs.fileno(), read_end, memory_mib)
        self.process = subprocess.Popen(  # noqa: S603 - our own module
            [*command, *map(str, numbers)],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": _python_path()},
            pass_fds=(theirs.fileno(), read_end),
            start_new_session=True,
        )
        theirs.close()
        os.close(read_end)
        # A worker that no longer reads, or stops in the middle of a reply, must not block us.
        limit = struct.pack("ll", MESSAGE_TIMEOUT_S, 0)
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, limit)
        self._connection = Connection(ours.detach())

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request.

        Raises:
            WorkerLostError: the process is dead, or does not read.
        """
        try:
            self._connection.send_bytes(json.dumps(request).encode())
        except OSError:
            raise self._death() from None

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Return the next reply.

        Raises:
            WorkerLostError: it did not come within `timeout_s` seconds, or the process died.
        """
        try:
            if self._connection.poll(max(timeout_s, 0.0)):
                return json.loads(self._connection.recv_bytes())
        except (EOFError, OSError, ValueError):
            raise self._death() from None
        raise WorkerLostError("timeout", "it took too long and was killed")

    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End the process and all that it started; any thread may do so."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and give back what belongs to it; only for the thread that talks to it."""
        self.kill()
        self.process.wait()
        self._connection.close()
        os.close(self._lifeline)

    def _death(self) -> WorkerLostError:
        try:
            code = self.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return WorkerLostError("error", "the worker process stopped talking and was killed")
        what = signal.strsignal(-code) if code < 0 else f"exit status {code}"
        return WorkerLostError("error", f"the worker process died: {what}")


def _python_path() -> str:
    # `pyflyte run` takes the project off the path once the workflow is loaded.
    project = str(Path(__file__).parents[2])
    return os.pathsep.join(os.path.abspath(entry) for entry in (project, *sys.path))
