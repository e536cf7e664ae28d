"""Runs command lines of flytekit, each in a fork of one process that has imported everything.

An import of the libraries takes ten times as long as a run of the tests. A fork starts from the
imports alone: no model, no store and no loop exists yet.

Requests and answers are JSON lines: `{"commands", "cwd", "env", "log"}` gives the process id, and
`{"wait", "timeout_s"}` the exit status.
"""

import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable

from flytekit.interfaces.random import random as names

PRELOADED = (
    "mlflow.store.tracking.sqlalchemy_store",
    "s3fs",
    "tasks.evaluation.held_out",
    "tasks.policy.embedded",
    "tasks.tracking.store",
    "tasks.run.evaluating",
    "tasks.trainer.loop",
    "workflows.evaluate",
    "workflows.grpo",
)


def main() -> None:
    from flytekit.bin.entrypoint import execute_task_cmd, map_execute_task_cmd
    from flytekit.clis.sdk_in_container.pyflyte import main as pyflyte

    for name in PRELOADED:
        importlib.import_module(name)
    programs = {
        "pyflyte": pyflyte,
        "pyflyte-execute": execute_task_cmd,
        "pyflyte-map-execute": map_execute_task_cmd,
    }
    for line in sys.stdin:
        request = json.loads(line)
        answer = wait(**request) if "wait" in request else start(programs, **request)
        print(answer, flush=True)
    os._exit(0)  # to take so many modules down in order takes seconds


def start(
    programs: dict[str, Callable[..., object]],
    commands: list[list[str]],
    cwd: str,
    env: dict[str, str],
    log: str,
) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        enter(cwd, env, log)
        for program, *words in commands:
            programs[program](words, standalone_mode=False)
        status = 0
    finally:
        if status:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def enter(cwd: str, env: dict[str, str], log: str) -> None:
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(target, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(cwd)
    os.environ.update(env)
    sys.path[:0] = env.get("PYTHONPATH", "").split(os.pathsep)
    # A shell that starts the tests in the background lets them inherit that interrupts are ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = None
    names.seed()  # directories are named by this generator, whose state a fork copies


def wait(wait: int, timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        pid, status = os.waitpid(wait, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(wait, signal.SIGKILL)
    os.waitpid(wait, 0)
    return 124


if __name__ == "__main__":
    main()
