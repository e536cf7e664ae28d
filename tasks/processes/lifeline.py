"""Ends a process together with the one that started it, however that one ends."""

import fcntl
import os


def die_with(lifeline: int) -> None:
    """Have the kernel end this process and its children once the parent's end of a pipe closes.

    A thread that watches the pipe would not do: it never runs while a C function holds the
    interpreter. The default action of SIGIO is to terminate.

    Args:
        lifeline: read end of a pipe of this process's own, whose other end only the parent holds.
    """
    os.set_inheritable(lifeline, False)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
