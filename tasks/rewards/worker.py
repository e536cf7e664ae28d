"""The program of a worker process: loads reward functions and calls them when told to.

Requests and replies are JSON, never pickles: a response's text may come to run here (a reward that
tests code), and must not come to run in the process that trains.
"""

import json
import os
import resource
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from tasks.processes.lifeline import die_with
from tasks.rewards.providers import Provider, checked, failure, load
from tasks.rewards.reward import Score

MAX_DETAIL_CHARACTERS = 500

Row = Sequence[str]
"""Response text, answer, payload."""

Send = Callable[[dict[str, Any]], None]


def main() -> None:
    """Answer requests until the parent closes the connection."""
    connection, lifeline, memory_mib = (int(word) for word in sys.argv[1:])
    die_with(lifeline)
    _limit_memory(memory_mib)
    serve(Connection(connection))
    # Not sys.exit: that would wait for threads that a reward function left behind.
    os._exit(0)


def serve(connection: Connection) -> None:
    """Answer requests to load a provider, or to score a batch with one that was loaded."""
    providers: dict[str, Provider] = {}

    def send(reply: dict[str, Any]) -> None:
        connection.send_bytes(json.dumps(reply).encode())

    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        name = request["provider"]
        if "rows" in request:
            _score(providers[name], request["rows"], request["timeout_s"], send)
        else:
            send(_load(providers, name, request["arguments"]))


def _load(providers: dict[str, Provider], name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        provider = providers[name] = load(name, arguments)
    except Exception as error:  # noqa: BLE001 - the parent raises it
        refusal = str(error) if isinstance(error, ValueError) else f"{name}: {error!r}"
        return {"refused": refusal}
    return {
        "together": provider.together,
        "is_async": provider.is_async,
        "reads": sorted(provider.reads),
    }


def _score(provider: Provider, rows: Sequence[Row], timeout_s: float, send: Send) -> None:
    def tell(index: int, score: Score) -> None:
        send(_reply(index, score))

    try:
        if provider.batched:
            _score_batch(provider, rows, send)
        elif provider.is_async:
            from tasks.rewards.awaiting import score_side_by_side

            score_side_by_side(provider, rows, timeout_s, tell)
        else:
            for index, row in enumerate(rows):
                tell(index, _judge(provider, row))
    except TypeError as error:
        send({"misuse": str(error)})


def _judge(provider: Provider, row: Row) -> Score:
    try:
        verdict = provider.function(*row)
    except Exception as error:  # noqa: BLE001 - whatever a user's function raises
        return failure(error)
    return checked(verdict, provider.name)


def _score_batch(provider: Provider, rows: Sequence[Row], send: Send) -> None:
    try:
        verdicts = _call_batched(provider, rows)
    except Exception as error:  # noqa: BLE001 - whatever a user's function raises
        send({"split": True} if len(rows) > 1 else _reply(0, failure(error)))
        return
    for index, verdict in enumerate(verdicts):
        send(_reply(index, checked(verdict, provider.name)))


def _call_batched(provider: Provider, rows: Sequence[Row]) -> list[object]:
    returned = provider.function(*(list(column) for column in zip(*rows, strict=True)))
    if provider.is_async:
        from tasks.rewards.awaiting import awaited

        returned = awaited(returned)
    verdicts = list(returned)
    if len(verdicts) != len(rows):
        raise ValueError(
            f"the reward function gave {len(verdicts)} scores for {len(rows)} responses"
        )
    return verdicts


def _reply(index: int, score: Score) -> dict[str, Any]:
    return {
        "row": index,
        "value": None if score.value is None else float(score.value),
        "status": score.status,
        "parts": {name: float(part) for name, part in score.parts.items()},
        "detail": _valid(str(score.detail))[:MAX_DETAIL_CHARACTERS],
    }


def _valid(text: str) -> str:
    """Return the text with a question mark for every half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode()


def _limit_memory(mib: int) -> None:
    if mib:
        resource.setrlimit(resource.RLIMIT_DATA, (mib * 2**20, mib * 2**20))


if __name__ == "__main__":
    main()
