"""A real vLLM server, in a process of its own: numbers, weights, seeds, ends."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` runs these")

from configs.rollout import VllmServer
from tasks.policy.declared import declared
from tasks.policy.files import PolicyFiles
from tasks.sampling.http import ServerError
from tasks.sampling.server import ServerSampler
from tests.vllm.builders import (
    END,
    IDS,
    MAX_PROMPT,
    MAX_TOKENS,
    PROMPTS,
    TOLERANCE,
    adapted,
    assert_same,
    distances,
    files_of,
    flat,
    model,
    params,
    perturbed,
    tokens,
    untied,
    written,
)

START_S = 300
"""Longest wait for the server on a busy machine."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def policy(root: Path) -> PolicyFiles:
    return written(untied(), root / "plain")


@pytest.fixture(scope="module")
def url(policy: PolicyFiles, root: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "model": policy.weights,
        "host": "127.0.0.1",
        "port": port,
        "generation-config": "vllm",
        "logprobs-mode": "processed_logprobs",
        "dtype": "float32",
        "max-model-len": MAX_PROMPT + MAX_TOKENS,
        "max-num-seqs": 64,
        "kv-cache-memory-bytes": 2**28,
        "max-lora-rank": 8,
    }
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--enforce-eager", "--enable-lora"]
    argv += [f"--{name}={value}" for name, value in options.items()]
    environment = {
        **os.environ,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCHDYNAMO_DISABLE": "1",  # vLLM compiles parts of its sampler even in eager mode
    }
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    with (root / "log").open("w") as log:
        process = subprocess.Popen(
            argv, env=environment, cwd=root, stdout=log, stderr=log, start_new_session=True
        )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(process, address, root / "log")
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


def wait_for(process: subprocess.Popen, address: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            urllib.request.urlopen(f"{address}/health", timeout=10).close()
        except (urllib.error.URLError, TimeoutError):
            time.sleep(1)
        else:
            return
    pytest.fail(f"no server after {START_S} s: {log.read_text()[-4000:]}")


def served(url: str, files: PolicyFiles) -> ServerSampler:
    settings = VllmServer(url=url, timeout_s=120.0, connect_timeout_s=10.0)
    return ServerSampler(settings=settings, files=files, declared=declared(files))


def test_every_new_adapter_is_sampled_from(url: str, policy: PolicyFiles, tmp_path: Path) -> None:
    """The first test: adapters go on the weights that the server was started with."""
    for seed in range(2):
        peft = adapted(policy.weights, tmp_path / str(seed), seed=seed)
        files = files_of(tmp_path / str(seed))
        groups = served(url, files).sample(PROMPTS, IDS, params())
        assert distances(peft, groups).max() < TOLERANCE
        assert distances(untied(), groups).mean() > 100 * TOLERANCE
    assert served(url, files).facts().engine_version.startswith("0.32.")


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_log_probabilities_are_those_of_transformers_at_the_sampling_temperature(
    url: str, policy: PolicyFiles, temperature: float
) -> None:
    groups = served(url, policy).sample(PROMPTS, IDS, params(temperature=temperature))
    assert distances(untied(), groups, temperature).max() < TOLERANCE
    assert [len(group) for group in groups] == [8] * len(PROMPTS)


@pytest.mark.parametrize("name", ["embed_tokens", "q_proj", "down_proj", "norm", "lm_head"])
def test_every_weight_of_a_new_policy_is_sampled_from(
    url: str, policy: PolicyFiles, tmp_path: Path, name: str
) -> None:
    served(url, policy).sample(PROMPTS, IDS, params())
    changed = perturbed(untied(), name)
    groups = served(url, written(changed, tmp_path)).sample(PROMPTS, IDS, params())
    assert distances(changed, groups).max() < TOLERANCE
    assert distances(untied(), groups).mean() > 10 * TOLERANCE


def test_equal_seeds_give_equal_samples_and_another_step_gives_others(
    url: str, policy: PolicyFiles
) -> None:
    sampler = served(url, policy)
    first = sampler.sample(PROMPTS, IDS, params())
    assert_same(sampler.sample(PROMPTS, IDS, params()), first)
    assert tokens(sampler.sample(PROMPTS, IDS, params(step=3))) != tokens(first)
    assert len({tuple(row) for row in tokens(first)}) > 8


def test_a_response_ends_with_the_first_of_several_end_tokens(
    url: str, policy: PolicyFiles
) -> None:
    hot = {"temperature": 1.5, "num_samples": 16}
    groups = served(url, policy).sample(PROMPTS, IDS, params(**hot, stop_token_ids=(7, 9)))
    ends = {END, 7, 9}
    for sample in flat(groups):
        row = sample.tokens.tolist()
        assert not ends & set(row[:-1])
        assert sample.finish_reason == ("stop" if row[-1] in ends else "length")
        assert len(row) == 12 or row[-1] in ends
        assert np.isfinite(sample.logprobs).all()
        assert len(sample.logprobs) == len(row)
    assert {sample.finish_reason for sample in flat(groups)} == {"stop", "length"}


def test_a_tied_output_layer_is_refused_on_a_cpu(url: str, tmp_path: Path) -> None:
    sampler = served(url, written(model(), tmp_path))
    with pytest.raises(ServerError, match="on a CPU, vLLM does not renew an output layer"):
        sampler.sample(PROMPTS, IDS, params())


def test_what_the_server_refuses_is_told(url: str, policy: PolicyFiles) -> None:
    with pytest.raises(ServerError, match=r"POST /v1/completions was refused with 400: "):
        served(url, policy).sample([[4] * (MAX_PROMPT + MAX_TOKENS)], [1], params())


def test_a_server_that_shortens_responses_in_silence_is_noticed(
    url: str, policy: PolicyFiles
) -> None:
    long = [4] * (MAX_PROMPT + MAX_TOKENS - 2)
    with pytest.raises(ServerError, match="it cut a response after 2 of 12 tokens; start it with"):
        served(url, policy).sample([long], [1], params(num_samples=32))
