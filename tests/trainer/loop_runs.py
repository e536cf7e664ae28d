"""Whole training steps from directory to directory; runs in a child process."""


def compute() -> dict:
    return {}
