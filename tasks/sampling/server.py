"""Sampling from a vLLM server that already runs elsewhere and reads the same file system.

It holds one policy at a time and says which: its weight version is the policy's digest. Rollouts of
two runs must not share it.
"""

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from configs.rollout import VllmServer
from tasks.policy.declared import Declared
from tasks.policy.files import PolicyFiles
from tasks.sampling.http import Json
from tasks.sampling.requests import in_groups, requests, require_tokens
from tasks.sampling.sampler import Completion, SamplingParams

LOADING = "loading"
"""Weight version while weights are changed: a reload that fails leaves no policy's name behind."""

RETRY_S = 0.2

REMEDY = (
    "it must be vLLM 0.32 or later that sees the checkpoint directories under the same paths, "
    "started as `VLLM_SERVER_DEV_MODE=1 vllm serve <model directory> --generation-config vllm "
    "--logprobs-mode processed_logprobs`; start it, or set rollout.engine=transformers"
)


@dataclass(frozen=True, kw_only=True)
class ServerSampler:
    """Samples from a server.

    Attributes:
        settings: its address and patience.
        files: the policy to sample from.
        declared: what the policy declares about itself.
    """

    settings: VllmServer
    files: PolicyFiles
    declared: Declared

    def sample(
        self, prompts: list[list[int]], group_ids: list[int], params: SamplingParams
    ) -> list[list[Completion]]:
        """Return `params.num_samples` completions for every prompt, in order.

        Raises:
            ServerError: the server is down, slow, wrongly started, or was given other weights
                meanwhile.
            ValueError: a prompt is empty, or vLLM does not sample at the temperature.
        """
        require_tokens(prompts)
        server = Json(
            url=self.settings.url,
            timeout_s=self.settings.timeout_s,
            connect_timeout_s=self.settings.connect_timeout_s,
            remedy=REMEDY,
        )
        follow(server, self.files, self.declared)
        bodies = self._bodies(prompts, group_ids, params)
        with ThreadPoolExecutor(self.settings.max_connections) as pool:
            completions = list(pool.map(lambda body: _complete(server, body), bodies))
        _require_version(server, self.files.digest)
        return in_groups(completions, params.num_samples)

    def _bodies(
        self, prompts: list[list[int]], group_ids: list[int], params: SamplingParams
    ) -> Iterator[dict[str, object]]:
        repeated = [prompt for prompt in prompts for _ in range(params.num_samples)]
        fields = requests(group_ids, params, self.declared.stop_token_ids)
        for prompt, each in zip(repeated, fields, strict=True):
            yield {**each, "prompt": prompt, "return_token_ids": True, "stream": False}


def follow(server: Json, files: PolicyFiles, declared: Declared) -> None:
    """Have the server hold the weights of `files`, if it does not yet.

    Raises:
        ServerError: it cannot, or it reports other log-probabilities than those sampled from.
    """
    if _version(server) == files.digest:
        return
    _check_start(server, declared)
    _name(server, LOADING)
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(files.weights.resolve())}}
    server.post("/collective_rpc", reload)
    _clear_cache(server)
    _name(server, files.digest)


def _check_start(server: Json, declared: Declared) -> None:
    config = server.get("/server_info?config_format=json")["vllm_config"]
    mode = config["model_config"]["logprobs_mode"]
    if mode != "processed_logprobs":
        raise server.error(f"it was started with --logprobs-mode {mode}")
    if config["device_config"]["device"] == "cpu" and declared.tied:
        raise server.error(
            "on a CPU, vLLM does not renew an output layer that shares the embedding's weights",
            remedy="serve on a GPU, or set rollout.engine=vllm",
        )


def _clear_cache(server: Json) -> None:
    """Clear cached keys and values of the old weights, once the last request has ended."""
    deadline = time.monotonic() + server.timeout_s
    while not server.post("/reset_prefix_cache")["success"]:
        if time.monotonic() > deadline:
            raise server.error(f"its prefix cache was still in use after {server.timeout_s:g} s")
        time.sleep(RETRY_S)


def _version(server: Json) -> str:
    return server.get("/weight_info")["weight_version"]


def _name(server: Json, version: str) -> None:
    server.post("/update_weight_version", {"new_version": version})


def _require_version(server: Json, digest: str) -> None:
    found = _version(server)
    if found != digest:
        raise server.error(
            f"it was given other weights ({found}) during a rollout of {digest}",
            remedy="give each run a server of its own",
        )


def _complete(server: Json, body: dict[str, object]) -> Completion:
    (choice,) = server.post("/v1/completions", body)["choices"]
    completion = _completion(server, choice)
    if completion.finish_reason == "length" and len(completion.tokens) != body["max_tokens"]:
        raise server.error(
            f"it cut a response after {len(completion.tokens)} of {body['max_tokens']} tokens",
            remedy="start it with a --max-model-len of at least rollout.max_prompt_tokens + "
            "rollout.max_tokens",
        )
    return completion


def _completion(server: Json, choice: dict[str, Any]) -> Completion:
    reason, tokens = choice["finish_reason"], choice["token_ids"]
    if reason not in ("stop", "length") or not tokens:
        raise server.error(f"it ended a response by {reason!r} after {len(tokens or [])} tokens")
    logprobs = choice["logprobs"]["token_logprobs"]
    return Completion(
        tokens=np.array(tokens, np.int32),
        logprobs=np.array([math.nan if x is None else x for x in logprobs], np.float32),
        finish_reason=reason,
    )
