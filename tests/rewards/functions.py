"""Reward functions that a configuration of the tests names."""

import asyncio
import contextlib
import ctypes
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tasks.rewards.reward import Score


def length(response_text: str, answer: str, payload: str) -> Score:
    return Score(float(len(response_text)), parts={"length": len(response_text)})


def fails_on_x(response_text: str, answer: str, payload: str) -> Score:
    if "x" in response_text:
        raise RuntimeError("no x" + "!" * 1000)
    return Score(1.0)


def not_finite(response_text: str, answer: str, payload: str) -> Score:
    return Score(float("nan"))


def echoes(response_text: str, answer: str, payload: str) -> Score:
    return Score(0.0, detail=f"{response_text}|{answer}|{payload}")


def plain_number(response_text: str, answer: str, payload: str) -> float:
    return 1.0


NOT_A_FUNCTION = 3


def right(response_text: str, answer: str, payload: str) -> Score:
    return Score(float(response_text == answer), parts={"of": len(payload)})


def loop() -> None:
    while True:
        pass


def swallow() -> None:
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(1000)


def grow() -> None:
    hoard = []
    while True:
        hoard.append(bytearray(2**24))


def deep() -> None:
    deep()


COMMANDS: dict[str, Callable[[], object]] = {
    "loop": loop,
    "sleep": lambda: time.sleep(1000),
    "swallow": swallow,
    "power": lambda: 9**9**9**9,
    "count": lambda: sum(itertools.repeat(1)),
    "exit": lambda: os._exit(0),
    "leave": lambda: sys.exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "memory": lambda: bytearray(2**40),
    "grow": grow,
    "deep": deep,
    "print": lambda: print("a reward function that prints"),
}


def obeys(response_text: str, answer: str, payload: str) -> Score:
    """Do what the response says, for the worst of it."""
    if response_text in COMMANDS:
        COMMANDS[response_text]()
    return Score(1.0)


def starts_a_child(response_text: str, answer: str, payload: str) -> Score:
    child = subprocess.Popen(["sleep", "1000"])
    Path(payload).write_text(str(child.pid))
    child.wait()
    return Score(1.0)


def process(response_text: str, answer: str, payload: str) -> Score:
    return Score(float(os.getpid()), parts={"threads": float(os.environ["OMP_NUM_THREADS"])})


def with_arguments(response_text: str, answer: str, payload: str, *, bonus: float = 0.0) -> Score:
    return Score(1.0 + bonus)


async def waits(response_text: str, answer: str, payload: str) -> Score:
    if response_text == "raise":
        raise RuntimeError("no")
    if response_text == "block":
        time.sleep(1000)
    await asyncio.sleep(1000 if response_text == "hang" else 0.3)
    return Score(1.0)


def batched(responses: list[str], answers: list[str], payloads: list[str]) -> list[Score]:
    if "exit" in responses:
        os._exit(1)
    if "hang" in responses:
        time.sleep(1000)
    if "raise" in responses:
        raise RuntimeError("no")
    if "few" in responses:
        return []
    return [
        Score(float(text == answer), parts={"of": len(responses)})
        for text, answer in zip(responses, answers, strict=True)
    ]


async def batched_async(
    responses: list[str], answers: list[str], payloads: list[str]
) -> list[Score]:
    await asyncio.sleep(0.01)
    return batched(responses, answers, payloads)
