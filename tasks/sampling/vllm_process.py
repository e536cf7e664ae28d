"""What a vLLM engine does to the process that it is started in, and how that is undone."""

import gc
import os
import random
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler in this process: repeatable batches
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the threads of this process are the trainer's too
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""Set before vLLM is imported; a value that the user has set stands, but for the first."""

_running: list[weakref.ref[Any]] = []
"""What has to be shut down before another engine starts: vLLM keeps process-wide state."""


@contextmanager
def unchanged_process() -> Iterator[None]:
    """Give the caller its random state, environment and threads back.

    vLLM seeds the process when an engine starts, and leaves variables for launchers (preloaded
    libraries, a world size) that children of this process would take for theirs.
    """
    python, legacy, environment = random.getstate(), np.random.get_state(), dict(os.environ)
    num_threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)
        _restore(environment)


def _restore(environment: dict[str, str]) -> None:
    """Put variables back, but for those by which the engine finds itself again."""
    for name in os.environ.keys() | environment.keys():
        if name.startswith("VLLM_"):
            continue
        if name in environment:
            os.environ[name] = environment[name]
        else:
            del os.environ[name]


def close_others() -> None:
    """Shut down an engine that was dropped; its collection would take the next one's state away."""
    gc.collect()
    while _running:
        client = _running.pop()()
        if client is not None:
            client.shutdown()


def set_environment() -> None:
    """Set what vLLM reads while it is imported."""
    first, *others = ENVIRONMENT
    os.environ[first] = ENVIRONMENT[first]
    for name in others:
        os.environ.setdefault(name, ENVIRONMENT[name])


def remember(client: object) -> None:
    """Have `close_others` shut down an engine's client before the next engine starts."""
    _running.append(weakref.ref(client))
