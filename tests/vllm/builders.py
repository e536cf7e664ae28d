"""Policies that vLLM accepts (32 numbers per attention head); samplers of one resident engine."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel

from configs.model import EmbeddedModel
from configs.run import RunConfig
from tasks.data.arithmetic import EOS, VOCABULARY
from tasks.policy.declared import declared
from tasks.policy.directory import weights_digest
from tasks.policy.embedded import build_model, build_tokenizer
from tasks.policy.files import PolicyFiles
from tasks.sampling.sampler import Completion, SamplingParams
from tasks.sampling.vllm import VllmSampler
from tests.policy.builders import run_config
from tests.trainer.builders import reference

END = VOCABULARY.index(EOS)
MAX_PROMPT, MAX_TOKENS = 16, 16
PROMPTS = [[4, 5, 6], [7], [3, 9, 4, 12, 5, 6, 7, 8, 9], [4, 5, 6, 13]]
IDS = [11, 2, 70, 5]
SHAPE = EmbeddedModel(
    hidden_size=64, num_layers=1, num_heads=2, intermediate_size=64, initializer_range=0.3
)

TOLERANCE = 1e-4
"""Nats by which a log-probability may differ from that of transformers, in float32."""


def model(seed: int = 0) -> PreTrainedModel:
    return build_model(SHAPE, seed=seed)


def untied(seed: int = 0) -> PreTrainedModel:
    """A model whose output layer has weights of its own, unlike the embedding's."""
    config = model().config
    config.tie_word_embeddings = False
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return type(model())(config).eval()


def written(policy: PreTrainedModel, to: Path) -> PolicyFiles:
    """The policy on disk, under the digest of its weights."""
    policy.save_pretrained(to)
    build_tokenizer().save_pretrained(to)
    return files_of(to)


def adapted(base: Path, to: Path, *, seed: int = 0, scale: float = 0.3) -> PeftModel:
    """The model of `base` under adapters, written to `to`; with `scale` 0 they change nothing."""
    settings = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"])
    peft = get_peft_model(AutoModelForCausalLM.from_pretrained(base), settings).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in peft.named_parameters():
            if "lora_B" in name:
                weight.copy_(scale * torch.randn(weight.shape, generator=generator))
    peft.save_pretrained(to)
    build_tokenizer().save_pretrained(to)
    return peft


def files_of(weights: Path) -> PolicyFiles:
    digest = weights_digest(weights)
    return PolicyFiles(
        version=0, digest=digest, state_digest="", weights=weights, trainer_state=weights
    )


def perturbed(policy: PreTrainedModel, name: str = "") -> PreTrainedModel:
    """The same policy in place, with noise on the weights whose name contains `name`."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for key, weight in policy.named_parameters():
            if name in key:
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return policy


def settings(root: Path, **rollout: object) -> RunConfig:
    fixed = {"engine": "vllm", "max_prompt_tokens": MAX_PROMPT, "max_tokens": MAX_TOKENS}
    return run_config(root, rollout={**fixed, "batch_size": 256, **rollout})


def sampler(files: PolicyFiles, *, stops: tuple[int, ...] | None = None) -> VllmSampler:
    """Samples from the resident engine; `stops` stand in for what the policy declares."""
    ends = declared(files).stop_token_ids if stops is None else frozenset(stops)
    return VllmSampler(config=settings(files.weights.parent), files=files, stop_token_ids=ends)


def params(**changes: object) -> SamplingParams:
    plain = SamplingParams(
        temperature=1.0,
        max_tokens=12,
        num_samples=8,
        stop_token_ids=(),
        seed=3,
        step=2,
        batch_size=64,
    )
    return replace(plain, **changes)


def distances(
    policy: PreTrainedModel, groups: list[list[Completion]], temperature: float = 1.0
) -> np.ndarray:
    """Differences, in nats, of all engine log-probabilities from those of a plain forward pass."""
    found = []
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for completion in group:
            expected, _ = reference(policy, prompt, completion.tokens.tolist(), temperature)
            found.append(completion.logprobs - expected.detach().numpy())
    return np.abs(np.concatenate(found))


def flat(groups: list[list[Completion]]) -> list[Completion]:
    return [completion for group in groups for completion in group]


def tokens(groups: list[list[Completion]]) -> list[list[int]]:
    return [completion.tokens.tolist() for completion in flat(groups)]


def assert_same(found: list[list[Completion]], expected: list[list[Completion]]) -> None:
    """The same tokens and ends; log-probabilities to the noise of another batch."""
    assert tokens(found) == tokens(expected)
    for one, other in zip(flat(found), flat(expected), strict=True):
        assert one.finish_reason == other.finish_reason
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=0, atol=2e-5)
