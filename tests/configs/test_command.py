import json
from pathlib import Path

import pytest
import yaml

from configs.__main__ import main
from configs.plan import plan
from configs.resolve import resolve, validate


def test_show_prints_the_config_the_plan_and_the_warnings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "rl.mini_batches=1 rl.max_steps=7 rollout.prompts_per_step=10 rollout.group_size=6"
    assert main(["show", "grpo_arithmetic", "--overrides", words]) == 0
    out = capsys.readouterr().out
    assert validate(yaml.safe_load(out)) == resolve("grpo_arithmetic", words)
    assert "#   10 prompts and 60 responses per step" in out
    assert "#   7 steps, 420 responses in all" in out
    assert "# warning: rl.mini_batches=1: " in out


def test_the_plan_counts_optimizer_steps_and_names_reduction_and_advantage() -> None:
    words = "rl.mini_batches=5 rl.max_steps=7 rollout.prompts_per_step=10 rollout.group_size=6"
    lines = plan(resolve("grpo_arithmetic", f"{words} rl.unbiased_advantage=true"))
    assert "5 optimizer steps per step" in lines
    assert "12 responses per optimizer step" in lines
    assert "35 optimizer steps in all" in lines
    assert "reduction token-mean; advantage r - mean" in lines


def test_show_as_json_prints_a_config_that_a_task_accepts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", "grpo_arithmetic", "--json"]) == 0
    assert validate(json.loads(capsys.readouterr().out)) == resolve("grpo_arithmetic")


def test_diff_prints_the_keys_in_which_two_recipes_differ(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("base: grpo_arithmetic\njob: {name: other}\nrl: {mini_batches: 16}\n")
    assert main(["diff", "grpo_arithmetic", str(other)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "job.name: 'grpo_arithmetic' -> 'other'",
        "rl.mini_batches: 8 -> 16",
    ]


def test_diff_of_a_recipe_with_itself_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "arithmetic", "arithmetic"]) == 0
    assert capsys.readouterr().out == ""


def test_a_refused_setting_ends_with_a_message_and_no_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", "grpo_arithmetic", "--overrides", "rl.max_steps=2 rl.grup_size=8"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("rl.grup_size: unknown key (got 8); did you mean rollout.")
