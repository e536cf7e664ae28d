"""Sampling from a vLLM server that already runs elsewhere and reads the same file system.

Rollouts of two runs must not share it.
"""

import math
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
from tasks.sampling.sampler import Completion, EngineFacts, SamplingParams
from tasks.sampling.server_weights import follow, model_name, require_version

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
        server = self._server()
        follow(server, self.files, self.declared)
        bodies = self._bodies(prompts, group_ids, params)
        with ThreadPoolExecutor(self.settings.max_connections) as pool:
            completions = list(pool.map(lambda body: _complete(server, body), bodies))
        require_version(server, self.files)
        return in_groups(completions, params.num_samples)

    def facts(self) -> EngineFacts:
        """Return the version that the server tells."""
        return EngineFacts(
            engine="server", engine_version=self._server().get("/version")["version"]
        )

    def _server(self) -> Json:
        return Json(
            url=self.settings.url,
            timeout_s=self.settings.timeout_s,
            connect_timeout_s=self.settings.connect_timeout_s,
            remedy=REMEDY,
        )

    def _bodies(
        self, prompts: list[list[int]], group_ids: list[int], params: SamplingParams
    ) -> Iterator[dict[str, object]]:
        shared = {"return_token_ids": True, "stream": False, **model_name(self.files)}
        repeated = [prompt for prompt in prompts for _ in range(params.num_samples)]
        fields = requests(group_ids, params, self.declared.stop_token_ids)
        for prompt, each in zip(repeated, fields, strict=True):
            yield {**each, "prompt": prompt, **shared}


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
