"""Both of our processes, in this one, on a policy that knows nothing."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.data.schemas import lengths
from tasks.sampling.rollout import rollout
from tasks.trainer.rows import collate
from tests.bench import bare, layouts
from tests.bench.prepare import DECLARING_FILES, declare_no_end
from tests.bench.work import EMBEDDED
from tests.policy.builders import open_policy, problems, run_config
from tests.trainer.builders import learned_positions, reference, rotary

TOKENS = 24
PROMPTS = [[4, 5, 6], [7], [3, 9, 4, 12, 5]]
SMALL = replace(EMBEDDED, prompts_per_step=3, group_size=2, max_tokens=5, mini_batches=2)


@pytest.fixture(autouse=True)
def _same_random_numbers():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def test_a_policy_that_declares_no_end_writes_every_response_to_the_last_token(
    tmp_path: Path,
) -> None:
    config = run_config(tmp_path, rollout={"max_tokens": TOKENS})
    files = open_policy(config)
    endless = tmp_path / "endless"
    shutil.copytree(files.weights, endless)
    declare_no_end(endless)

    def written(weights: Path) -> list[int]:
        sampled = rollout(config, 0, problems(8), replace(files, weights=weights))
        return lengths(sampled["response_tokens"]).tolist()

    assert min(written(files.weights)) < TOKENS
    assert set(written(endless)) == {TOKENS}


def test_nothing_but_the_end_is_taken_out_of_the_files_of_a_policy(tmp_path: Path) -> None:
    for name in DECLARING_FILES:
        Path(tmp_path, name).write_text(json.dumps({"eos_token_id": 1, "eos_token": "e", "x": 2}))
    declare_no_end(tmp_path)
    for name in DECLARING_FILES:
        assert json.loads(Path(tmp_path, name).read_text()) == {"x": 2}


def test_the_plain_loop_scores_responses_as_a_lone_forward_pass_does() -> None:
    model = learned_positions()
    responses = torch.randint(0, 20, (3, 5))
    found = bare.logprobs(model, PROMPTS, responses)
    for row, prompt in enumerate(PROMPTS):
        expected, _ = reference(model, prompt, responses[row].tolist())
        np.testing.assert_allclose(found[row].detach(), expected.detach(), atol=1e-5)


def test_the_plain_loop_samples_groups_from_prompts_of_any_length() -> None:
    model = learned_positions()
    work = replace(SMALL, group_size=400, max_tokens=2)
    written = bare.generate(model, PROMPTS, work)
    assert written.shape == (1200, 2)
    for row, prompt in enumerate(PROMPTS):
        group = written[400 * row : 400 * (row + 1)]
        first = model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
        shares = torch.bincount(group[:, 0], minlength=len(first)) / len(group)
        assert (shares - first).abs().max() < 0.1


def test_the_plain_loop_takes_one_optimizer_step_per_mini_batch() -> None:
    model = rotary()
    rows = [prompt for prompt in PROMPTS for _ in range(SMALL.group_size)]
    plan = bare.planned(rows, SMALL)
    assert [sorted(row for chunk in chunks for row in chunk) for chunks in plan] == [
        [0, 1, 2],
        [3, 4, 5],
    ]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    bare.train(model, optimizer, rows, bare.generate(model, PROMPTS, SMALL), plan)
    assert {int(state["step"]) for state in optimizer.state.values()} == {2}
    assert any(not b.equal(p) for b, p in zip(before, model.parameters(), strict=True))


def test_the_clipped_loss_of_the_plain_loop_at_hand_picked_ratios() -> None:
    ratios = torch.tensor([[1.5], [0.5], [5.0], [1.0]])
    advantages = torch.tensor([[1.0], [-1.0], [-1.0], [2.0]])
    loss = bare.clipped(ratios.log(), torch.zeros(4, 1), advantages)
    torch.testing.assert_close(loss, torch.tensor([[-1.2], [0.8], [3.0], [-2.0]]))


@pytest.mark.parametrize("name", layouts.LAYOUTS)
def test_every_layout_holds_every_row_once_within_its_bound(name: str) -> None:
    rows, layout = layouts.skewed_rows(4), layouts.LAYOUTS[name]
    scale = 3000.0 if layout.shares else 0.0
    chunks = layout.plan(rows, layouts.MAX_TOKENS_PER_CHUNK, scale)
    assert sorted(np.concatenate(chunks)) == list(range(len(rows)))
    for chunk in chunks:
        laid_out = layouts.occupied(collate(rows, chunk, layouts.CPU), scale)
        assert laid_out.numel() <= layouts.MAX_TOKENS_PER_CHUNK


def test_layouts_that_give_another_gradient_are_refused() -> None:
    found = {"one": [layouts.Pass(1.0, 0.1, 2.0)], "other": [layouts.Pass(1.0, 0.1, 2.1)]}
    with pytest.raises(ValueError, match="norm"):
        layouts.require_same_work(found)
