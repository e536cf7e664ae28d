"""Policies in PEFT layout: the frozen model is opened once, every new adapter is sampled from."""

import json
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` runs these")

from peft import PeftModel

from tasks.policy import resident
from tasks.policy.directory import ADAPTER_CONFIG
from tasks.policy.files import PolicyFiles
from tasks.sampling.sampler import Completion
from tasks.sampling.vllm import KIND, engine_key
from tests.vllm.builders import (
    IDS,
    PROMPTS,
    TOLERANCE,
    adapted,
    distances,
    files_of,
    model,
    params,
    sampler,
    tokens,
    written,
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(model(), tmp_path_factory.mktemp("adapters") / "base").weights


def sampled(files: PolicyFiles) -> list[list[Completion]]:
    return sampler(files).sample(PROMPTS, IDS, params())


def test_every_new_adapter_is_sampled_from_by_the_engine_that_already_runs(
    base: Path, tmp_path: Path
) -> None:
    engines, texts = set(), []
    for seed in range(3):
        peft = adapted(base, tmp_path / str(seed), seed=seed)
        files = files_of(tmp_path / str(seed))
        groups = sampled(files)
        assert distances(peft, groups).max() < TOLERANCE
        assert distances(model(), groups).mean() > 100 * TOLERANCE
        held = sampler(files)
        engines.add(resident.borrow(KIND, engine_key(files, held.arguments()), _refuse))
        texts.append(tokens(groups))
    assert len(engines) == 1
    assert texts[0] != texts[1] != texts[2]
    again = sampled(files_of(tmp_path / "0"))
    assert tokens(again) == texts[0]


def test_an_adapter_that_changes_nothing_samples_as_the_frozen_model(
    base: Path, tmp_path: Path
) -> None:
    adapted(base, tmp_path / "zero", scale=0.0)
    groups = sampled(files_of(tmp_path / "zero"))
    assert distances(model(), groups).max() < TOLERANCE


def test_adapters_that_vllm_cannot_hold_are_refused(base: Path, tmp_path: Path) -> None:
    adapted(base, tmp_path / "wide")
    path = tmp_path / "wide" / ADAPTER_CONFIG
    declared = json.loads(path.read_text())
    path.write_text(json.dumps({**declared, "r": 1024}))
    with pytest.raises(ValueError, match=r"adapters of rank 1024, and vLLM holds 512 at most"):
        sampled(files_of(tmp_path / "wide"))


def _refuse() -> PeftModel:
    raise LookupError("no engine is held")
