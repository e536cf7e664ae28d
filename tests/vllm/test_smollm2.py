"""A published model, SmolLM2-135M-Instruct: what vLLM reports is what the trainer computes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` runs these")

import torch

from configs.data import Data
from configs.model import Model
from configs.run import RunConfig
from tasks.policy import resident
from tasks.policy.declared import declared
from tasks.policy.directory import load_model
from tasks.policy.files import PolicyFiles
from tasks.policy.start import initial_policy
from tasks.policy.tokenizing import encoder, tokenizer_of
from tasks.sampling.sampler import Completion
from tasks.sampling.vllm import KIND, VllmSampler
from tasks.trainer.policy import PolicyAdapter, PolicyModel
from tasks.trainer.rows import Rows, collate
from tests.vllm.builders import flat, params, settings

QUESTIONS = [f"What is {number} + {number + 20}? Think step by step." for number in range(8)]
MAX_PROMPT, MAX_TOKENS = 96, 32
MISMATCH = 1e-3
"""Nats between engine and trainer in float32, on average."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smollm2")


@pytest.fixture(scope="module")
def policy(root: Path) -> Iterator[PolicyFiles]:
    yield initial_policy(Model(source="smollm2"), Data(), seed=0, output_root=root)
    resident.drop(KIND)


@pytest.fixture(scope="module")
def prompts(policy: PolicyFiles) -> list[list[int]]:
    return encoder(tokenizer_of(policy), Data(source="gsm8k", chat=True))(QUESTIONS)


@pytest.fixture(scope="module")
def trainer(policy: PolicyFiles) -> PolicyAdapter:
    return PolicyAdapter(PolicyModel(load_model(policy.weights, dtype="float32")))


def config(root: Path) -> RunConfig:
    return settings(root, max_prompt_tokens=MAX_PROMPT, max_tokens=MAX_TOKENS, batch_size=8)


def trained(
    trainer: PolicyAdapter,
    prompts: list[list[int]],
    completions: list[Completion],
    temperature: float,
) -> np.ndarray:
    """Log-probabilities of all sampled tokens, as the loss computes them."""
    lengths = [len(one.tokens) for one in completions]
    rows = Rows(
        ids=np.arange(len(completions)),
        prompts=[np.array(prompt) for prompt in prompts],
        responses=[one.tokens for one in completions],
        masks=[np.ones(length, bool) for length in lengths],
        advantages=np.zeros(len(completions), np.float32),
        engine_logprobs=[one.logprobs for one in completions],
    )
    batch = collate(rows, np.arange(len(completions)), torch.device("cpu"))
    with torch.no_grad():
        scored = trainer.token_logprobs(batch, temperature=temperature).logprobs
    return scored[batch.response_mask.bool()].numpy()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_engine_and_trainer_agree_at_the_sampling_temperature(
    policy: PolicyFiles,
    prompts: list[list[int]],
    trainer: PolicyAdapter,
    root: Path,
    temperature: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = VllmSampler(
        config=config(root), files=policy, stop_token_ids=declared(policy).stop_token_ids
    )
    drawn = params(temperature=temperature, max_tokens=MAX_TOKENS, num_samples=1, batch_size=8)
    completions = flat(engine.sample(prompts, list(range(8)), drawn))
    reported = np.concatenate([one.logprobs for one in completions])
    found = np.abs(reported - trained(trainer, prompts, completions, temperature))
    with capsys.disabled():
        print(
            f"\ntemperature {temperature}: |engine - trainer| mean {found.mean():.1e}, max "
            f"{found.max():.1e} nats over {len(found)} tokens"
        )
    assert len(found) > 100
    assert found.mean() < MISMATCH
    elsewhere = trained(trainer, prompts, completions, temperature + 0.2)
    assert np.abs(reported - elsewhere).mean() > 10 * MISMATCH
