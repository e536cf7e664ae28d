"""A run holds no more after many steps than after a few."""

import json
from pathlib import Path

import pytest

from tests.workflows.runs import Warm


@pytest.mark.parametrize(("staleness", "save_every"), [(0, 2), (2, 6)])
def test_open_files_and_temporary_files_do_not_grow(
    warm: Warm, tmp_path: Path, staleness: int, save_every: int
) -> None:
    log, scratch = tmp_path / "counts.jsonl", tmp_path / "scratch"
    scratch.mkdir()
    words = warm.command(
        tmp_path,
        rl__builder="counting:build_objective",
        rl__builder_arguments__log=log,
        rl__max_steps=13,
        rl__save_every=save_every,
        rollout__staleness=staleness,
        rollout__shards=2,
        rollout__prompts_per_step=2,
        rollout__group_size=2,
        tracking__keep_tables="false",
        tracking__deck_every=2,
        evaluation__every=4,
        evaluation__num_prompts=1,
    )
    code, output = warm.run(words, log=tmp_path / "log", env={"TMPDIR": str(scratch)})
    assert code == 0, output[-3000:]
    # The first two are from before the first step: the config is checked, the run opened.
    steps = [json.loads(line) for line in log.read_text().splitlines()][2:]
    assert len(steps) == 13
    assert steps[4] == steps[10]
