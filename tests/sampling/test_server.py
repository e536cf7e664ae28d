"""What a rollout says when its server is down, slow, wrongly started or shared.

The servers here are small stand-ins that answer what a test tells them; `tests/vllm` speaks to a
real one.
"""

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from configs.rollout import VllmServer
from tasks.policy.declared import Declared
from tasks.policy.directory import ADAPTER_CONFIG
from tasks.policy.files import PolicyFiles
from tasks.sampling.http import ServerError
from tasks.sampling.sampler import Completion, EngineFacts
from tasks.sampling.server import ServerSampler
from tests.sampling.builders import params

BASE = str(Path(__file__).parent)
"""Any directory: what adapters change, and the server serves."""

FILES = PolicyFiles(
    version=1, digest="new", state_digest="", weights=Path("/w"), trainer_state=Path("/t")
)
FACTS = Declared(stop_token_ids=frozenset({1}), context=128, tied=False)


class Server:
    """Answers like vLLM; records every request; `change` replaces an answer."""

    def __init__(self, mode: str = "processed_logprobs", device: str = "cuda") -> None:
        self.version = "old"
        self.asked: list[tuple[str, dict]] = []
        model = {"logprobs_mode": mode, "model": BASE}
        config = {"model_config": model, "device_config": {"device": device}}
        self.info = {"vllm_config": config}
        self.changes: dict[str, Callable[[], tuple[int, dict | None]]] = {}
        self.adapters: list[str] = []
        self.lock = threading.Lock()
        self.piece, self.pause_s = 1_000_000, 0.0

    def answer(self, path: str, body: dict) -> tuple[int, dict | None]:
        with self.lock:
            self.asked.append((path, body))
        if path in self.changes:
            return self.changes[path]()
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path == "/v1/load_lora_adapter":
            self.adapters.append(body["lora_name"])
        if path == "/v1/unload_lora_adapter":
            self.adapters.remove(body["lora_name"])
        models = [{"id": "m", "parent": None}, *({"id": a, "parent": "m"} for a in self.adapters)]
        answers = {
            "/version": {"version": "0.32.0"},
            "/v1/models": {"data": models},
            "/v1/load_lora_adapter": "Success: not an object",
            "/v1/unload_lora_adapter": "Success: not an object",
            "/weight_info": {"weight_version": self.version},
            "/update_weight_version": {"success": True},
            "/server_info?config_format=json": self.info,
            "/reset_prefix_cache": {"success": True},
            "/collective_rpc": None,
            "/v1/completions": {"choices": [choice(body.get("prompt", []))]},
        }
        return 200, answers[path]

    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


def choice(prompt: list[int], **changes: object) -> dict:
    """A response that is its prompt and an end token."""
    logprobs = {"token_logprobs": [-0.5] * len(prompt) + [None]}
    return {"token_ids": [*prompt, 1], "logprobs": logprobs, "finish_reason": "stop", **changes}


@contextmanager
def listening(server: Server) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            status, answer = server.answer(self.path, body)
            self.send_response(status)
            self.end_headers()
            content = b"" if answer is None else json.dumps(answer).encode()
            for place in range(0, len(content), server.piece):
                self.wfile.write(content[place : place + server.piece])
                time.sleep(server.pause_s)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()


def sample(
    url: str,
    *,
    facts: Declared = FACTS,
    patience: float = 2.0,
    wait: float = 5.0,
    files: PolicyFiles = FILES,
) -> list[list[Completion]]:
    settings = VllmServer(url=url, timeout_s=wait, connect_timeout_s=patience)
    sampler = ServerSampler(settings=settings, files=files, declared=facts)
    return sampler.sample([[4, 5], [7]], [11, 3], params(num_samples=2))


def refusal(server: Server, **options: object) -> str:
    with listening(server) as url, pytest.raises(ServerError) as raised:
        sample(url, **options)
    assert str(raised.value).startswith(f"rollout.server.url={url}: ")
    return str(raised.value)


def test_answers_are_laid_out_by_group_and_a_missing_log_probability_is_nan() -> None:
    with listening(Server()) as url:
        groups = sample(url)
    assert [[one.tokens.tolist() for one in group] for group in groups] == [
        [[4, 5, 1]] * 2,
        [[7, 1]] * 2,
    ]
    np.testing.assert_array_equal(groups[1][0].logprobs, np.float32([-0.5, np.nan]))
    assert groups[0][0].finish_reason == "stop"


def test_new_weights_are_loaded_and_the_cache_cleared_before_anything_is_sampled() -> None:
    server = Server()
    with listening(server) as url:
        sample(url)
        assert server.version == "new"
        first = server.paths()
        sample(url)
    changed = [
        "/weight_info",
        "/server_info?config_format=json",
        "/update_weight_version",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/update_weight_version",
    ]
    assert first == [*changed, *["/v1/completions"] * 4, "/weight_info"]
    assert server.paths()[len(first) :] == [
        "/weight_info",
        *["/v1/completions"] * 4,
        "/weight_info",
    ]
    told = [body for path, body in server.asked if path == "/collective_rpc"]
    assert told == [{"method": "reload_weights", "kwargs": {"weights_path": "/w"}}]


def test_a_reload_that_fails_leaves_no_name_of_a_policy_behind() -> None:
    server = Server()
    server.changes["/collective_rpc"] = lambda: (500, {"error": "no such file"})
    told = refusal(server)
    assert "POST /collective_rpc was refused with 500" in told
    assert "no such file" in told
    assert server.version == "loading"


def test_the_cache_is_cleared_once_the_last_request_has_ended() -> None:
    server = Server()
    answers = iter([False, False, True])
    server.changes["/reset_prefix_cache"] = lambda: (200, {"success": next(answers)})
    with listening(server) as url:
        sample(url)
    assert server.paths().count("/reset_prefix_cache") == 3


def test_a_cache_that_stays_in_use_ends_the_wait() -> None:
    server = Server()
    server.changes["/reset_prefix_cache"] = lambda: (200, {"success": False})
    assert "its prefix cache was still in use after 0.5 s" in refusal(server, wait=0.5)
    assert "/v1/completions" not in server.paths()


def test_log_probabilities_of_another_kind_are_refused_before_any_change() -> None:
    server = Server(mode="raw_logprobs")
    told = refusal(server)
    assert "it was started with --logprobs-mode raw_logprobs; " in told
    assert "--logprobs-mode processed_logprobs" in told
    assert server.version == "old"


def test_a_tied_output_layer_is_refused_on_a_cpu_only() -> None:
    tied = Declared(stop_token_ids=frozenset({1}), context=128, tied=True)
    told = refusal(Server(device="cpu"), facts=tied)
    assert told.endswith("serve on a GPU, or set rollout.engine=vllm")
    for server, facts in ((Server(device="cpu"), FACTS), (Server(device="cuda"), tied)):
        with listening(server) as url:
            assert sample(url, facts=facts)


def test_a_server_without_its_development_routes_is_refused_with_how_to_start_it() -> None:
    server = Server()
    server.changes["/weight_info"] = lambda: (404, {"detail": "Not Found"})
    told = refusal(server)
    assert "GET /weight_info was refused with 404" in told
    assert "VLLM_SERVER_DEV_MODE=1 vllm serve" in told


def test_a_server_that_is_down_ends_a_bounded_wait_with_its_address() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    started = time.monotonic()
    message = (
        rf"rollout\.server\.url={re.escape(url)}: GET /weight_info: .*refused.*, tried for 1 s"
    )
    with pytest.raises(ServerError, match=message):
        sample(url, patience=1.0)
    assert 1 <= time.monotonic() - started < 20


def test_an_answer_that_does_not_come_ends_a_bounded_wait() -> None:
    server = Server()
    server.changes["/v1/completions"] = lambda: (time.sleep(3), (200, {}))[1]
    assert "POST /v1/completions: no answer in 1 s" in refusal(server, wait=1.0)


def test_an_answer_that_comes_byte_by_byte_ends_a_bounded_wait() -> None:
    server = Server()
    server.piece, server.pause_s = 1, 0.3
    started = time.monotonic()
    assert "GET /weight_info: no answer in 1 s" in refusal(server, wait=1.0)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({}, "an answer has no 'weight_version', but {}"),
        ({"error": "no such model"}, "but {'error': 'no such model'}"),
        ([1, 2], "GET /weight_info: the answer broke off"),
        ("text", "expected an object"),
    ],
)
def test_an_answer_of_another_form_is_shown(answer: object, message: str) -> None:
    server = Server()
    server.changes["/weight_info"] = lambda: (200, answer)
    assert message in refusal(server)


def test_weights_that_another_run_loads_meanwhile_are_noticed() -> None:
    server = Server()
    versions = iter(["new", "foreign"])
    server.changes["/weight_info"] = lambda: (200, {"weight_version": next(versions)})
    told = refusal(server)
    assert "it was given other weights (foreign) during a rollout of new" in told
    assert told.endswith("give each run a server of its own")


@pytest.mark.parametrize("ended", [{"finish_reason": "abort"}, {"token_ids": []}])
def test_a_response_that_was_cut_off_stops_the_rollout(ended: dict) -> None:
    server = Server()
    server.changes["/v1/completions"] = lambda: (200, {"choices": [choice([4], **ended)]})
    assert "it ended a response by" in refusal(server)


def test_a_response_that_is_shorter_than_asked_without_an_end_stops_the_rollout() -> None:
    server = Server()
    cut = choice([4, 5], finish_reason="length")
    server.changes["/v1/completions"] = lambda: (200, {"choices": [cut]})
    told = refusal(server)
    assert "it cut a response after 3 of 6 tokens; start it with a --max-model-len" in told


def test_the_version_of_the_server_is_told() -> None:
    with listening(Server()) as url:
        settings = VllmServer(url=url, timeout_s=5.0, connect_timeout_s=2.0)
        sampler = ServerSampler(settings=settings, files=FILES, declared=FACTS)
        assert sampler.facts() == EngineFacts(engine="server", engine_version="0.32.0")


def adapters(root: Path, digest: str = "new") -> PolicyFiles:
    declared = {"base_model_name_or_path": BASE, "revision": None, "r": 4}
    (root / ADAPTER_CONFIG).write_text(json.dumps(declared))
    return replace(FILES, weights=root, digest=digest)


def untouched(**options: str) -> Server:
    server = Server(**options)
    server.version = "default"
    return server


def test_adapters_are_loaded_once_under_their_digest_and_earlier_ones_dropped(
    tmp_path: Path,
) -> None:
    server = untouched()
    server.adapters = ["before"]
    with listening(server) as url:
        sample(url, files=adapters(tmp_path))
        first = len(server.asked)
        sample(url, files=adapters(tmp_path))
        again = server.paths()[first:]
        sample(url, files=adapters(tmp_path, "next"))
    changes = [(path, body) for path, body in server.asked if "adapter" in path]
    assert changes == [
        ("/v1/load_lora_adapter", {"lora_name": "new", "lora_path": str(tmp_path)}),
        ("/v1/unload_lora_adapter", {"lora_name": "before"}),
        ("/v1/load_lora_adapter", {"lora_name": "next", "lora_path": str(tmp_path)}),
        ("/v1/unload_lora_adapter", {"lora_name": "new"}),
    ]
    assert again == ["/v1/models", *["/v1/completions"] * 4, "/weight_info"]
    assert server.paths().count("/reset_prefix_cache") == 2
    assert not {"/collective_rpc", "/update_weight_version"} & set(server.paths())
    asked = [body["model"] for path, body in server.asked if path == "/v1/completions"]
    assert asked == ["new"] * 8 + ["next"] * 4


def test_whole_weights_name_no_model() -> None:
    server = Server()
    with listening(server) as url:
        sample(url)
    assert all("model" not in body for _, body in server.asked)


def test_a_server_that_takes_no_adapters_is_refused_with_how_to_start_it(tmp_path: Path) -> None:
    server = untouched()
    server.changes["/v1/load_lora_adapter"] = lambda: (404, {"detail": "Not Found"})
    told = refusal(server, files=adapters(tmp_path))
    assert "it took no adapters: " in told
    assert "was refused with 404" in told
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in told
    assert "--enable-lora" in told
    assert "/v1/completions" not in server.paths()


def test_adapters_of_another_model_than_is_served_are_refused(tmp_path: Path) -> None:
    server = untouched()
    server.info["vllm_config"]["model_config"]["model"] = "/another"
    told = refusal(server, files=adapters(tmp_path))
    assert f"it serves /another, and the adapters change {BASE}" in told
    assert server.adapters == []


def test_adapters_on_replaced_weights_are_refused(tmp_path: Path) -> None:
    told = refusal(Server(), files=adapters(tmp_path))
    assert "its weights were replaced by those of old since it was started" in told


def test_log_probabilities_of_another_kind_are_refused_for_adapters_too(tmp_path: Path) -> None:
    told = refusal(untouched(mode="raw_logprobs"), files=adapters(tmp_path))
    assert "it was started with --logprobs-mode raw_logprobs; " in told


def test_weights_that_are_replaced_under_adapters_are_noticed(tmp_path: Path) -> None:
    server = untouched()
    versions = iter(["default", "foreign"])
    server.changes["/weight_info"] = lambda: (200, {"weight_version": next(versions)})
    told = refusal(server, files=adapters(tmp_path))
    assert "it was given other weights (foreign) during a rollout of new" in told
