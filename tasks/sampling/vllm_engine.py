"""The one place that calls vLLM: start, follow new weights, generate, sleep.

Weights are changed through vLLM's public calls alone. What a version of it gets wrong is put right
here, and only for the versions in which that was tried.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tasks.policy.directory import base_of, has_adapter
from tasks.policy.files import PolicyFiles
from tasks.sampling.vllm_model import narrow_head, pack_heads, require_cpu_version
from tasks.sampling.vllm_process import close_others, remember, set_environment

if TYPE_CHECKING:
    from vllm import CompletionOutput
    from vllm.lora.request import LoRARequest

NEUTRAL: dict[str, Any] = {
    "generation_config": "vllm",
    "logprobs_mode": "processed_logprobs",
    "skip_tokenizer_init": True,
    "enable_prefix_caching": True,
    "use_tqdm_on_load": False,
    "seed": 0,
}
"""Arguments of every engine: nothing from the model's files, log-probabilities as sampled."""

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
        close_others()
        set_environment()
        from vllm import LLM
        from vllm.platforms import current_platform

        self._on_cpu = current_platform.is_cpu()
        self._sleeps = bool(arguments["enable_sleep_mode"])
        self._eager = bool(arguments["enforce_eager"])
        if self._sleeps and (self._on_cpu or not current_platform.is_sleep_mode_available()):
            raise ValueError(
                "rollout.vllm.sleep=true: vLLM has no sleep mode on "
                f"{current_platform.device_name}; set it to false (of a teacher's engine, "
                "teacher.vllm.sleep)"
            )
        unread = "gpu_memory_utilization" if self._on_cpu else "kv_cache_memory_bytes"
        kept = {name: value for name, value in arguments.items() if name != unread}
        self._llm = LLM(model=str(base_of(files.weights)), **NEUTRAL, **kept)
        remember(self._llm.llm_engine.engine_core)
        self._digest = "" if has_adapter(files.weights) else files.digest
        self._adapter: LoRARequest | None = None
        self._before_sleep: list[Answer] | None = None

    def follow(self, files: PolicyFiles) -> None:
        """Be awake and hold the weights of `files`, loading them in place if they are others.

        Adapters are loaded beside the frozen model, each time under a number not used before.

        Raises:
            RuntimeError: cached keys and values of the old weights could not be cleared, the
                engine woke with other weights than it went to sleep with, or this version of vLLM
                is not known to reload weights on a CPU.
        """
        self._wake()
        if self._digest == files.digest:
            return
        if has_adapter(files.weights):
            self._adapt(files)
        else:
            self._reload(files.weights)
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
                lora_request=self._adapter,
            )
        return [_answer(output.outputs[0]) for output in outputs]

    def score(
        self, sequences: list[list[int]], *, num_likeliest: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return ids and log-probabilities at every position but the first: [n - 1, 1 + K] each.

        The first of a position is the token that stands there; the `num_likeliest` most probable
        follow, in this order. The temperature is 1, whatever a request says.
        """
        from vllm import SamplingParams

        fields = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            prompt_logprobs=num_likeliest,
            flat_logprobs=True,
            detokenize=False,
        )
        with self._stance():
            outputs = self._llm.generate(
                [{"prompt_token_ids": sequence} for sequence in sequences],
                fields,
                use_tqdm=False,
                lora_request=self._adapter,
            )
        shape = (-1, 1 + num_likeliest)
        found = [output.prompt_logprobs for output in outputs]
        return [
            (np.array(each.token_ids).reshape(shape), np.array(each.logprobs).reshape(shape))
            for each in found
        ]

    def narrow(self, vocabulary: int) -> None:
        """Leave out the rows of the output layer from `vocabulary` on, which no token uses."""
        self._llm.apply_model(partial(narrow_head, vocabulary=vocabulary))

    def _reload(self, weights: Path) -> None:
        if self._on_cpu:
            require_cpu_version()
        self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(weights)})
        if self._on_cpu:
            self._llm.apply_model(pack_heads)

    def _adapt(self, files: PolicyFiles) -> None:
        from vllm.lora.request import LoRARequest

        number = 1 if self._adapter is None else self._adapter.lora_int_id + 1
        self._adapter = LoRARequest(files.digest, number, str(files.weights.resolve()))

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
