"""The program of one rank: calls what its parent names, until the parent is gone."""

import importlib
import logging
import os
import pickle
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from tasks.processes.lifeline import die_with


def main() -> None:
    """Answer calls until the parent closes the connection."""
    connection, lifeline = (int(word) for word in sys.argv[1:])
    die_with(lifeline)
    if os.environ["RANK"] != "0":
        logging.disable(logging.WARNING)  # rank 0 says it
    serve(Connection(connection))
    # Not sys.exit: a rank whose peers are gone could wait for them when it tears down.
    os._exit(0)


def serve(connection: Connection) -> None:
    """Answer `(target, arguments)` with `(False, result)` or `(True, traceback)`."""
    while True:
        try:
            target, arguments = pickle.loads(connection.recv_bytes())  # noqa: S301 - our parent's
        except (EOFError, OSError):
            return
        connection.send_bytes(_answer(target, arguments))


def _answer(target: str, arguments: tuple[Any, ...]) -> bytes:
    try:
        # Not `Connection.send`, which would hand tensors over by file descriptors.
        return pickle.dumps((False, named(target)(*arguments)))
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        return pickle.dumps((True, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


def named(target: str) -> Any:  # noqa: ANN401 - whatever stands there
    """Return what `module:function` names.

    >>> named("os.path:join")("a", "b")
    'a/b'
    """
    module, name = target.split(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    main()
