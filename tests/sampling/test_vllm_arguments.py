"""What the configuration says reaches the arguments of the engine; vLLM need not be installed."""

import json
import shutil
from pathlib import Path

import pytest

from configs.rollout import VllmEngine
from tasks.policy.directory import ADAPTER_CONFIG, adapter_rank, has_adapter
from tasks.policy.files import PolicyFiles
from tasks.sampling.vllm import VllmSampler, adapter_arguments, engine_key, process_arguments
from tasks.sampling.vllm_teacher import engine_arguments
from tests.policy.builders import open_policy, run_config

PLAIN = {
    "dtype": "float32",
    "tensor_parallel_size": 1,
    "gpu_memory_utilization": 0.5,
    "kv_cache_memory_bytes": 2**30,
    "enforce_eager": True,
    "enable_sleep_mode": False,
}


def sampler(root: Path, files: PolicyFiles, **vllm: object) -> VllmSampler:
    config = run_config(root, rollout={"engine": "vllm", "vllm": vllm})
    return VllmSampler(config=config, files=files, stop_token_ids=frozenset())


@pytest.mark.parametrize(
    ("field", "value", "argument", "expected"),
    [
        ("tensor_parallel_size", 4, "tensor_parallel_size", 4),
        ("sleep", True, "enable_sleep_mode", True),
        ("compile", True, "enforce_eager", False),
        ("gpu_memory_utilization", 0.3, "gpu_memory_utilization", 0.3),
        ("cpu_kv_cache_gib", 3, "kv_cache_memory_bytes", 3 * 2**30),
        ("dtype", "bfloat16", "dtype", "bfloat16"),
    ],
)
def test_a_setting_of_the_engine_is_passed_through_and_changes_no_other(
    field: str, value: object, argument: str, expected: object
) -> None:
    found = process_arguments(VllmEngine(**{field: value}), dtype="float32")
    assert found == {**PLAIN, argument: expected}


def test_an_engine_that_runs_is_found_again_by_its_arguments_only(tmp_path: Path) -> None:
    files = open_policy(run_config(tmp_path))
    one, same, split = (
        sampler(tmp_path, files, **changed)
        for changed in ({}, {"tensor_parallel_size": 1}, {"tensor_parallel_size": 2})
    )
    assert one.arguments()["max_model_len"] == 64 + 5
    assert engine_key(files, one.arguments()) == engine_key(files, same.arguments())
    assert engine_key(files, one.arguments()) != engine_key(files, split.arguments())


def test_a_teacher_has_an_engine_of_its_own_settings(tmp_path: Path) -> None:
    config = run_config(tmp_path, trainer={"max_tokens_per_chunk": 4096})
    teacher = config.teacher.model_copy(
        update={"vllm": VllmEngine(tensor_parallel_size=2), "dtype": "bfloat16"}
    )
    config = config.model_copy(update={"teacher": teacher})
    found = engine_arguments(config, open_policy(config), 5)
    assert found == {
        **PLAIN,
        "dtype": "bfloat16",
        "tensor_parallel_size": 2,
        "max_model_len": 64 + 5 + 1,
        "max_num_batched_tokens": 4096,
        "max_num_seqs": 1024,
        "max_logprobs": 5,
    }


@pytest.mark.parametrize(
    ("batch_size", "max_tokens", "tokens"), [(8, 5, 8192), (9000, 5, 9000), (8, 9990, 10054)]
)
def test_a_pass_holds_a_token_of_every_sequence_and_a_whole_one(
    tmp_path: Path, batch_size: int, max_tokens: int, tokens: int
) -> None:
    files = open_policy(run_config(tmp_path))
    settings = {"engine": "vllm", "batch_size": batch_size, "max_tokens": max_tokens}
    config = run_config(tmp_path, rollout=settings)
    engine = VllmSampler(config=config, files=files, stop_token_ids=frozenset())
    assert engine.arguments()["max_num_batched_tokens"] == tokens


def adapters(root: Path, **declared: object) -> Path:
    root.mkdir(exist_ok=True)
    (root / ADAPTER_CONFIG).write_text(json.dumps({"revision": None, **declared}))
    return root


@pytest.mark.parametrize(("rank", "bound"), [(1, 8), (8, 8), (9, 16), (300, 320), (512, 512)])
def test_the_bound_of_adapters_is_the_next_that_vllm_has(
    tmp_path: Path, rank: int, bound: int
) -> None:
    found = adapter_arguments(adapters(tmp_path, r=rank))
    assert found == {"enable_lora": True, "max_loras": 1, "max_lora_rank": bound}


def test_whole_weights_ask_for_no_adapters(tmp_path: Path) -> None:
    assert adapter_arguments(tmp_path) == {}
    assert not has_adapter(tmp_path)


def test_the_largest_of_several_ranks_counts(tmp_path: Path) -> None:
    found = adapter_rank(adapters(tmp_path, r=4, rank_pattern={"q_proj": 12, "v_proj": 2}))
    assert found == 12


def test_adapters_of_two_models_need_two_engines(tmp_path: Path) -> None:
    files = open_policy(run_config(tmp_path))
    keys = set()
    for name in ("base", "other"):
        base = shutil.copytree(files.weights, tmp_path / name)
        weights = adapters(tmp_path / "adapters", r=4, base_model_name_or_path=str(base))
        changed = PolicyFiles(**{**vars(files), "weights": weights})
        keys.add(engine_key(changed, sampler(tmp_path, changed).arguments()))
    assert len(keys) == 2
