from dataclasses import replace

import pyarrow as pa
import pytest

from configs.resolve import resolve
from tasks.evaluation.judging import judge
from tasks.evaluation.record import describe, prompts_fingerprint
from tests.data.tables import scored
from tests.evaluation.builders import RECORD


def judged(**columns: list) -> pa.Table:
    return judge(scored(4, **columns), "exact_match")


@pytest.mark.parametrize("column", ["prompt_id", "source", "prompt_text", "answer", "payload"])
def test_another_prompt_has_another_fingerprint(column: str) -> None:
    assert prompts_fingerprint(judged(**{column: ["x"] * 4})) != prompts_fingerprint(judged())


def test_neither_tokens_nor_responses_nor_order_enter_the_fingerprint() -> None:
    table = judged()
    assert prompts_fingerprint(table.take([2, 3, 0, 1])) == prompts_fingerprint(table)
    other = judged(prompt_tokens=[[9]] * 4, response_text=["x"] * 4, policy_digest=["y"] * 4)
    assert prompts_fingerprint(other) == prompts_fingerprint(judged())


@pytest.mark.parametrize(
    "changed",
    [
        {"policy_digest": "x"},
        {"prompts": "x"},
        {"reward": {"provider": "gsm8k"}},
        {"sampling": {**RECORD.sampling, "temperature": 0.5}},
        {"pass_at": [1, 2]},
    ],
)
def test_another_evaluation_is_kept_elsewhere(changed: dict) -> None:
    assert replace(RECORD, **changed).name != RECORD.name


@pytest.mark.parametrize(
    ("origin", "start"),
    [
        ("initial", "initial-"),
        ("/runs/a/checkpoints/step-000200", "step-000200-"),
        ("owner/name@main", "owner--name--main-"),
    ],
)
def test_the_name_says_what_was_evaluated(origin: str, start: str) -> None:
    name = replace(RECORD, origin=origin).name
    assert name.startswith(start)
    assert len(name) == len(start) + 8
    assert replace(RECORD, origin=origin, metrics={}).name == name


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        ("", "exact_match"),
        ("reward.parts.gsm8k=1 reward.parts.format=0.1", "gsm8k"),
        ("reward.provider=here:mine", "here:mine"),
        ("reward.provider=here:mine evaluation.correct_part=exact", "exact"),
    ],
)
def test_the_record_names_what_decides(overrides: str, part: str) -> None:
    config = resolve("grpo_arithmetic", overrides)
    record = describe(config, judged(), {}, origin="initial", step=0, digest="d")
    assert record.reward["correct_part"] == part
