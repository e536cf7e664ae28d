import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.rl import Rl
from tasks.annotators.annotate import annotate
from tasks.annotators.summary import group_summary
from tasks.data.schemas import ANNOTATED, SCORED, read_stamp, stamp
from tests.data.tables import annotated, rollouts, scored

NAN = float("nan")


def column(table: pa.Table, name: str) -> list:
    return table.column(name).to_pylist()


def test_the_scored_columns_stay_as_they_were() -> None:
    table = scored(6)
    result = annotate(table, Rl())
    assert result.schema == ANNOTATED
    assert result.select(SCORED.names).equals(table)


def test_an_ordinary_batch_has_advantages_full_masks_and_no_annotations() -> None:
    result = annotate(scored(reward=[1.0, 0.0, 1.0, 0.0]), Rl())
    np.testing.assert_allclose(column(result, "advantage"), [1.0, -1.0, 1.0, -1.0], rtol=1e-5)
    assert column(result, "loss_mask") == [[True] * 3] * 4
    assert column(result, "annotations") == [""] * 4


@pytest.mark.parametrize("missing", [None, NAN])
def test_an_unscored_response_has_advantage_zero_and_trains_on_nothing(
    missing: float | None,
) -> None:
    result = annotate(scored(3, group_size=3, reward=[1.0, missing, 0.0]), Rl())
    np.testing.assert_allclose(column(result, "advantage"), [1.0, 0.0, -1.0], rtol=1e-5)
    assert column(result, "loss_mask") == [[True] * 3, [False] * 3, [True] * 3]
    assert column(result, "annotations") == ["", "unscored", ""]


def test_truncated_responses_count_in_the_statistics_and_are_masked_afterwards() -> None:
    table = scored(finish_reason=["stop", "length", "stop", "stop"], reward=[1.0, 0.0, 0.0, 1.0])
    result = annotate(table, Rl(mask_truncated=True))
    np.testing.assert_allclose(column(result, "advantage"), [1.0, -1.0, -1.0, 1.0], rtol=1e-5)
    assert column(result, "loss_mask")[1] == [False] * 3
    assert column(result, "annotations") == ["", "truncated", "", ""]
    assert column(annotate(table, Rl()), "loss_mask")[1] == [True] * 3


def test_groups_without_variance_are_masked_only_on_request() -> None:
    table = scored(reward=[1.0, 1.0, 1.0, 0.0])
    result = annotate(table, Rl(drop_zero_variance_groups=True))
    assert column(result, "loss_mask") == [[False] * 3] * 2 + [[True] * 3] * 2
    assert column(result, "annotations") == ["zero-variance", "zero-variance", "", ""]
    assert column(annotate(table, Rl()), "loss_mask") == [[True] * 3] * 4


def test_a_shared_prefix_is_masked_and_the_rest_trains() -> None:
    tokens = [[5, 6, 1], [5, 6, 2, 3], [7], [8]]
    logprobs = [[-1.0] * len(row) for row in tokens]
    table = scored(response_tokens=tokens, engine_logprobs=logprobs)
    result = annotate(table, Rl(min_shared_prefix_tokens=2))
    expected = [[False, False, True], [False, False, True, True], [True], [True]]
    assert column(result, "loss_mask") == expected
    assert column(result, "annotations") == ["shared-prefix", "shared-prefix", "", ""]


def test_several_reasons_are_all_named() -> None:
    table = scored(reward=[None, 1.0, 0.0, 1.0], finish_reason=["length"] * 4)
    result = annotate(table, Rl(mask_truncated=True, drop_zero_variance_groups=True))
    assert column(result, "annotations") == [
        "unscored,truncated,zero-variance",
        "truncated,zero-variance",
        "truncated",
        "truncated",
    ]


# Group 0 has rewards 1, 0, 0, 0 and group 1 has 2/3 of right answers: each estimator differs.
REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, None]


@pytest.mark.parametrize(
    ("rl", "first"),
    [
        (Rl(), 0.75 / math.sqrt(3 / 16)),
        (Rl(unbiased_advantage=True), 0.75),
        (Rl(advantage="leave_one_out"), 1.0),
        (Rl(advantage="batch_whitened"), 0.75 / math.sqrt((3 / 4 + 2 / 3) / 7)),
        (Rl(advantage="maxrl"), 3.0),
        (Rl(advantage="pass_at_k", pass_k=2), 1.0),
        (Rl(advantage="pass_at_k", pass_k=3), math.sqrt(1 / 3)),
    ],
)
def test_the_configured_estimator_is_the_one_that_runs(rl: Rl, first: float) -> None:
    result = annotate(scored(8, group_size=4, reward=REWARDS), rl)
    assert column(result, "advantage")[0] == pytest.approx(first, rel=1e-5)


@given(st.permutations(range(8)))
def test_shuffling_the_table_changes_no_row(order: list[int]) -> None:
    tokens = [[4, row % 3, row] for row in range(8)]
    table = scored(8, group_size=4, reward=REWARDS, response_tokens=tokens)
    rl = Rl(min_shared_prefix_tokens=1, drop_zero_variance_groups=True)
    direct = annotate(table, rl).take(list(order))
    shuffled = annotate(table.take(list(order)), rl)
    assert shuffled.drop_columns("advantage").equals(direct.drop_columns("advantage"))
    np.testing.assert_allclose(
        column(shuffled, "advantage"), column(direct, "advantage"), rtol=1e-6
    )


def test_a_table_in_chunks_and_slices_is_annotated_alike() -> None:
    table = scored(8, group_size=4, reward=REWARDS)
    parts = pa.concat_tables([table.slice(0, 3), table.slice(3)])
    assert annotate(parts, Rl()).equals(annotate(table, Rl()))


def test_two_prompts_of_equal_text_are_two_groups() -> None:
    result = annotate(scored(reward=[1.0, 1.0, 0.0, 0.0]), Rl())
    assert set(column(result, "prompt_text")) == {"07+45="}
    assert column(result, "advantage") == [0.0] * 4


def test_an_empty_response_is_no_obstacle() -> None:
    tokens = [[], [1], [2, 3], []]
    logprobs = [[-1.0] * len(row) for row in tokens]
    table = scored(response_tokens=tokens, engine_logprobs=logprobs)
    assert column(annotate(table, Rl()), "loss_mask") == [[], [True], [True, True], []]


def test_the_stamp_travels_and_names_the_stage() -> None:
    table = stamp(scored(), run="r", step=4, stage="score", policy_version=2)
    origin = read_stamp(annotate(table, Rl()))
    assert origin == {"run": "r", "step": "4", "stage": "annotate", "policy_version": "2"}


def test_an_unscored_table_is_refused_by_the_stage_that_is_missing() -> None:
    with pytest.raises(TypeError, match=r"'reward' \(added by score\)"):
        annotate(rollouts(), Rl())


def test_the_summary_by_hand() -> None:
    tokens = [[1], [1, 2], [1, 2, 3], [], [1], [1]]
    table = annotated(
        6,
        group_size=2,
        reward=[1.0, 0.0, 0.5, 0.5, None, 1.0],
        reward_status=["ok", "wrong-format", "ok", "ok", "timeout", "ok"],
        reward_parts=[[("match", 1.0)], [("match", 0.0)], [], [("style", 2.0)], [], []],
        finish_reason=["stop", "length", "stop", "stop", "stop", "abort"],
        response_tokens=tokens,
        engine_logprobs=[[-1.0] * len(row) for row in tokens],
        loss_mask=[[True], [False, False], [True] * 3, [], [False], [True]],
    )
    assert group_summary(table) == pytest.approx(
        {
            "reward/mean": 0.6,
            "reward/std": math.sqrt((0.16 + 0.36 + 0.01 + 0.01 + 0.16) / 5),
            "reward/num_unscored": 1,
            "reward/num_ok": 4,
            "reward/num_wrong_format": 1,
            "reward/num_error": 0,
            "reward/num_timeout": 1,
            "reward/part/match": 0.5,
            "reward/part/style": 2.0,
            "groups/num": 3,
            "groups/zero_variance_fraction": 2 / 3,
            "response/length_mean": 8 / 6,
            "response/length_max": 3,
            "response/length_min": 0,
            "response/truncated_fraction": 1 / 6,
            "response/masked_token_fraction": 3 / 8,
        }
    )


def test_the_summary_of_a_slice_is_that_of_its_rows_alone() -> None:
    table = annotated(8, group_size=2, reward=[1.0, 0.0] * 4)
    table = table.set_column(
        table.column_names.index("reward_parts"),
        "reward_parts",
        pa.array([[("match", float(row))] for row in range(8)], SCORED.field("reward_parts").type),
    )
    assert group_summary(table.slice(4, 2))["reward/part/match"] == 4.5
    assert group_summary(table.slice(4, 2))["groups/num"] == 1


def test_a_table_without_a_mask_has_no_masked_fraction() -> None:
    assert "response/masked_token_fraction" not in group_summary(scored())


def test_the_mean_of_nothing_is_not_a_number() -> None:
    summary = group_summary(scored(2, reward=[None, None]))
    assert math.isnan(summary["reward/mean"])
    assert math.isnan(summary["reward/std"])
