"""JSON over HTTP with a bounded wait and an error that says what was tried and what to do."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

RETRY_S = 0.5
EXCERPT = 500
"""Characters of a refusal that an error repeats."""


class ServerError(RuntimeError):
    """A sampling server is down, slow, or refuses what it is asked."""


class Answer(dict[str, Any]):
    """A JSON object of an answer, which complains about a key that it lacks."""

    def __init__(self, values: dict[str, Any], complain: Callable[[str], Exception]) -> None:
        super().__init__(values)
        self._complain = complain

    def __missing__(self, key: str) -> None:
        raise self._complain(f"an answer has no {key!r}, but {str(dict(self))[:EXCERPT]}")


def _nothing(_content: bytes) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Json:
    """Speaks JSON with one server.

    Attributes:
        url: its address.
        timeout_s: longest wait for one answer.
        connect_timeout_s: longest wait for it to accept connections.
        remedy: what the user should do when it does not answer.
    """

    url: str
    timeout_s: float
    connect_timeout_s: float
    remedy: str

    def get(self, path: str) -> dict[str, Any]:
        """Return the answer to a GET."""
        return self._ask(path, None, self._parsed)

    def post(self, path: str, body: dict[str, object] | None = None) -> dict[str, Any]:
        """Return the answer to a POST; one without content is an empty dictionary.

        Raises:
            ServerError: it is down, did not answer in time, or refused.
        """
        return self._ask(path, json.dumps(body or {}).encode(), self._parsed)

    def tell(self, path: str, body: dict[str, object]) -> None:
        """Post something whose answer, unless it is a refusal, is a sentence for people.

        Raises:
            ServerError: as `post`.
        """
        self._ask(path, json.dumps(body).encode(), _nothing)

    def error(self, problem: str, *, remedy: str = "") -> ServerError:
        """Return an error about this server, with a remedy of its own or the general one."""
        return ServerError(f"rollout.server.url={self.url}: {problem}; {remedy or self.remedy}")

    def _ask(
        self, path: str, body: bytes | None, read: Callable[[bytes], dict[str, Any]]
    ) -> dict[str, Any]:
        what = f"{'GET' if body is None else 'POST'} {path}"
        deadline = time.monotonic() + self.connect_timeout_s
        while True:
            try:
                return read(self._once(path, body))
            except HTTPError as refused:
                text = refused.read().decode(errors="replace")[:EXCERPT]
                raise self.error(f"{what} was refused with {refused.code}: {text}") from refused
            except URLError as closed:
                if isinstance(closed.reason, TimeoutError):
                    raise self.error(f"{what}: no answer in {self.timeout_s:g} s") from closed
                if time.monotonic() > deadline:
                    waited = f"tried for {self.connect_timeout_s:g} s"
                    raise self.error(f"{what}: {closed.reason}, {waited}") from closed
                time.sleep(RETRY_S)
            except TimeoutError as slow:
                raise self.error(f"{what}: no answer in {self.timeout_s:g} s") from slow
            except (HTTPException, ConnectionError, ValueError) as broken:
                raise self.error(f"{what}: the answer broke off ({broken!r})") from broken

    def _parsed(self, content: bytes) -> dict[str, Any]:
        def known(values: dict[str, Any]) -> Answer:
            return Answer(values, self.error)

        found = json.loads(content, object_hook=known) if content else known({})
        if not isinstance(found, Answer):
            raise ValueError(f"{content[:EXCERPT]!r}, expected an object")  # noqa: TRY004
        return found

    def _once(self, path: str, body: bytes | None) -> bytes:
        headers = {"Content-Type": "application/json"}
        request = Request(self.url.rstrip("/") + path, data=body, headers=headers)  # noqa: S310
        deadline = time.monotonic() + self.timeout_s
        parts = []
        with urlopen(request, timeout=self.timeout_s) as answer:  # noqa: S310
            # The timeout is that of each read, and an answer may come byte by byte.
            while part := answer.read1():
                parts.append(part)
                if time.monotonic() > deadline:
                    raise TimeoutError
        return b"".join(parts)
