"""Reward functions that a configuration of the tests names."""

import asyncio
import contextlib
import ctypes
import itertools
import os
import subprocess
import sys
import time
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


def obeys(response_text: str, answer: str, payload: str) -> Score:
    """Do what the response says, for the worst of it."""
    match response_text.split():
        case ["loop"]:
            while True:
                pass
        case ["sleep"]:
            time.sleep(1000)
        case ["swallow"]:
            while True:
                with contextlib.suppress(BaseException):
                    time.sleep(1000)
        case ["power"]:
            return Score(float(9**9**9**9))
        case ["count"]:
            return Score(float(sum(itertools.repeat(1))))
        case ["exit"]:
            os._exit(0)
        case ["leave"]:
            sys.exit(3)
        case ["segfault"]:
            ctypes.string_at(0)
        case ["memory"]:
            return Score(float(len(bytearray(2**40))))
        case ["grow"]:
            hoard = []
            while True:
                hoard.append(bytearray(2**24))
        case ["deep"]:
            return obeys(response_text, answer, payload) if deep() else Score(0.0)
        case ["child"]:
            child = subprocess.Popen(["sleep", "1000"])
            Path(payload).write_text(str(child.pid))
            child.wait()
        case ["print"]:
            print("a reward function that prints")
        case ["pid"]:
            return Score(float(os.getpid()))
        case ["threads"]:
            return Score(float(os.environ["OMP_NUM_THREADS"]))
    return Score(1.0)


def deep() -> bool:
    return deep()


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
