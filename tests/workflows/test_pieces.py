"""Every piece of a run can be started alone, from files that the run has left."""

import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from configs.run import RunConfig
from tasks.data.arrow import FILE_NAME, write_table
from tasks.data.preparing import prepare
from tasks.policy.tokenizing import encoder
from tests.workflows.runs import ROOT, Finished, Warm

STEPS = {"rl__max_steps": 3, "trainer__keep_last": 3}


@pytest.fixture(scope="module")
def run(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    finished = warm.grpo(tmp_path_factory.mktemp("pieces"), **STEPS)
    assert finished.checkpoints == [1, 2, 3], finished.output
    return finished


@pytest.fixture(scope="module")
def prompts(run: Finished, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the directories of the two prompt tables, as `prepare_prompts` hands them on."""
    config = RunConfig.model_validate_json((run.directory / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(run.directory / "checkpoints/step-000001/weights")
    limit = config.rollout.max_prompt_tokens
    encode = encoder(tokenizer, config.data)
    pool, held_out, _ = prepare(config.data, encode, max_prompt_tokens=limit)
    root = tmp_path_factory.mktemp("prompts")
    write_table(root / "pool" / FILE_NAME, pool)
    write_table(root / "held_out" / FILE_NAME, held_out)
    return {"pool": root / "pool", "held_out": root / "held_out"}


def inputs(done: Finished, *, at: int, **more: object) -> list[str]:
    policy = done.directory / "checkpoints" / f"step-{at:06d}" / "policy.json"
    given = {"config": done.directory / "config.json", "policy": policy, **more}
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


@pytest.mark.parametrize(
    ("name", "start", "span"),
    [("grpo_step", 2, {"step": 2}), ("segment", 1, {"start": 1, "stop": 3})],
)
def test_steps_that_are_taken_again_give_the_same_bits(
    warm: Warm,
    run: Finished,
    prompts: dict[str, Path],
    tmp_path: Path,
    name: str,
    start: int,
    span: dict[str, int],
) -> None:
    tables, manifest = run.tables, last_manifest(run)
    shutil.rmtree(run.directory / "checkpoints" / "step-000003")
    (run.directory / "tables" / "step-000002.arrow").unlink()
    more = {"run": run.directory / "run.json", "auxiliary": "{}", **prompts, **span}
    command = ["pyflyte", "run", str(ROOT / "workflows" / "grpo.py"), name]
    code, output = warm.run([*command, *inputs(run, at=start, **more)], log=tmp_path / "log")
    assert code == 0, output[-3000:]
    assert run.tables == tables
    assert last_manifest(run) == manifest


def test_one_task_runs_alone(
    warm: Warm, run: Finished, prompts: dict[str, Path], tmp_path: Path
) -> None:
    command = ["pyflyte", "run", str(ROOT / "tasks" / "evaluate.py"), "evaluate"]
    words = inputs(run, at=1, held_out=prompts["held_out"])
    code, output = warm.run([*command, *words], log=tmp_path / "log")
    assert code == 0, output[-3000:]
    assert "'val/num_responses': 8.0" in output


def last_manifest(run: Finished) -> str:
    return (run.directory / "checkpoints" / "step-000003" / "manifest.json").read_text()
