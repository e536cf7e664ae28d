"""A run in several executions is the run in one."""

from pathlib import Path

from tests.workflows.runs import ROOT, Finished, Warm, overrides, table_differences

STEPS = {"trainer__lr_schedule": "constant", "evaluation__every": 0}


def test_two_legs_of_two_steps_are_four_steps(warm: Warm, tmp_path: Path) -> None:
    whole = warm.grpo(tmp_path / "whole", rl__max_steps=4, **STEPS)
    words = overrides(tmp_path / "legs", tracking__uri=warm.store, **STEPS)
    command = ["pyflyte", "run", str(ROOT / "workflows" / "chain.py"), "grpo_chain"]
    legs = ["--recipe", "grpo_arithmetic", "--leg_steps", "2", "--num_legs", "2"]
    code, output = warm.run([*command, *legs, "--overrides", words], log=tmp_path / "log")
    chained = Finished(code, output, tmp_path / "legs" / "tiny")
    assert chained.weights == whole.weights
    assert table_differences(chained, whole) == []
    assert "continuing after step 2 of 4" in output
