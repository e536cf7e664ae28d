"""A process that runs one of our modules, as its parent sees it."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path


class Child:
    """A new interpreter in a process group of its own, which dies with this process.

    Its module is run with two numbers and some words: the file descriptor of its connection, that
    of its lifeline (for `die_with`), and the words.

    Attributes:
        process: the interpreter.
        connection: carries messages both ways.

    Args:
        module: dotted name.
        words: what it finds in `sys.argv` after the two numbers.
        environment: variables on top of this process's.
        message_timeout_s: whole seconds in which a message that was begun must have passed, in
            either direction; 0: however long it takes.
    """

    def __init__(
        self,
        module: str,
        *words: str,
        environment: Mapping[str, str],
        message_timeout_s: int = 0,
    ) -> None:
        ours, theirs = socket.socketpair()
        read_end, self._lifeline = os.pipe()
        numbers = (theirs.fileno(), read_end)
        # A new interpreter, not a fork: the parent may hold torch, its threads and a device.
        self.process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-P", "-m", module, *map(str, numbers), *words],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment, "PYTHONPATH": _python_path()},
            pass_fds=numbers,
            start_new_session=True,
        )
        theirs.close()
        os.close(read_end)
        # A child that no longer reads, or stops in the middle of a reply, must not block us.
        limit = struct.pack("ll", message_timeout_s, 0)
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, limit)
        self.connection = Connection(ours.detach())

    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return self.process.poll() is None

    def cause_of_death(self, timeout_s: float = 1.0) -> str | None:
        """Return what ended the process, or None if it does not end within `timeout_s` seconds."""
        try:
            code = self.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return signal.strsignal(-code) if code < 0 else f"exit status {code}"

    def kill(self) -> None:
        """End the process and all that it started; any thread may do so."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and give back what belongs to it; only for the thread that talks to it."""
        self.kill()
        self.process.wait()
        self.connection.close()
        os.close(self._lifeline)


def _python_path() -> str:
    # `pyflyte run` takes the project off the path once the workflow is loaded.
    project = str(Path(__file__).parents[2])
    return os.pathsep.join(os.path.abspath(entry) for entry in (project, *sys.path))
