import numpy as np
import pyarrow as pa
import pytest

from tasks.data.schemas import (
    ANNOTATED,
    OPTIONAL,
    PRODUCER,
    PROMPTS,
    ROLLOUTS,
    SCORED,
    check_rows,
    extend,
    lengths,
    read_stamp,
    require,
    stamp,
)
from tests.data.tables import annotated, build, prompts, rollouts, scored


def replaced(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


def test_every_stage_only_adds_columns_to_its_predecessor() -> None:
    for earlier, later in ((PROMPTS, ROLLOUTS), (ROLLOUTS, SCORED), (SCORED, ANNOTATED)):
        assert list(later)[: len(earlier)] == list(earlier)
        assert len(later) > len(earlier)


def test_only_the_reward_may_be_null() -> None:
    assert [field.name for field in ANNOTATED if field.nullable] == ["reward"]


def test_each_column_is_known_by_the_stage_that_adds_it() -> None:
    assert PRODUCER["group_id"] == "select_prompts"
    assert PRODUCER["engine_logprobs"] == "rollout"
    assert PRODUCER["reward"] == "score"
    assert PRODUCER["loss_mask"] == "annotate"


@pytest.mark.parametrize(
    ("table", "schema"),
    [(prompts(), PROMPTS), (rollouts(), ROLLOUTS), (scored(), SCORED), (annotated(), ANNOTATED)],
)
def test_a_table_of_the_schema_passes_unchanged(table: pa.Table, schema: pa.Schema) -> None:
    assert require(table, schema, stage="x").equals(table)
    assert len(require(table.slice(0, 0), schema, stage="x")) == 0


def test_columns_come_back_in_the_order_and_with_the_nullability_of_the_schema() -> None:
    shuffled = rollouts().select(ROLLOUTS.names[::-1])
    loose = shuffled.cast(pa.schema([field.with_nullable(True) for field in shuffled.schema]))
    assert require(loose, ROLLOUTS, stage="x").schema == ROLLOUTS


def test_a_missing_column_is_named_with_the_stage_that_adds_it() -> None:
    with pytest.raises(TypeError, match=r"annotate: .*lacks 'reward' \(added by score\)"):
        require(rollouts(), SCORED, stage="annotate")


def test_an_extra_column_is_named() -> None:
    with pytest.raises(TypeError, match="unexpected 'reward'"):
        require(scored(), ROLLOUTS, stage="score")


def test_a_wrong_type_is_named_with_both_types() -> None:
    table = replaced(rollouts(), "group_id", pa.array([0, 0, 1, 1], pa.int32()))
    with pytest.raises(TypeError, match="'group_id' as int32, expected int64"):
        require(table, ROLLOUTS, stage="score")


def test_a_column_that_occurs_twice_is_refused() -> None:
    table = rollouts().append_column("answer", pa.array(["1"] * 4))
    with pytest.raises(TypeError, match="'answer' twice"):
        require(table, ROLLOUTS, stage="score")


def test_a_null_where_none_is_allowed_is_refused() -> None:
    table = replaced(rollouts(), "answer", pa.array(["1", None, "2", "3"]))
    with pytest.raises(TypeError, match="'answer' holds 1 nulls"):
        require(table, ROLLOUTS, stage="score")


def test_a_null_token_is_refused_and_a_null_engine_logprob_is_not() -> None:
    nulls = [[None, 1, 2]] * 4
    with pytest.raises(TypeError, match="lists of 'response_tokens' hold 4 nulls"):
        require(rollouts(response_tokens=nulls), ROLLOUTS, stage="score")
    require(rollouts(engine_logprobs=[[None, -1.0, -2.0]] * 4), ROLLOUTS, stage="score")


def test_a_null_reward_passes() -> None:
    table = scored(reward=[None, 1.0, 0.0, 1.0])
    assert require(table, SCORED, stage="annotate").column("reward").null_count == 1


@pytest.mark.parametrize("name", ["engine_logprobs", "loss_mask"])
def test_lists_of_a_row_that_differ_in_length_are_refused(name: str) -> None:
    short = {"engine_logprobs": [-1.0], "loss_mask": [True]}[name]
    table = annotated()
    values = table.column(name).to_pylist()
    values[2] = short
    with pytest.raises(ValueError, match=rf"1 rows .* {name!r}; first at row 2: 3 against 1"):
        require(annotated(**{name: values}), ANNOTATED, stage="train")


def test_repeated_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="sample_id=100 occurs more than once"):
        require(rollouts(sample_id=[100, 101, 102, 100]), ROLLOUTS, stage="score")
    with pytest.raises(ValueError, match="group_id=1, sample_index=0 occurs more than once"):
        require(rollouts(sample_index=[0, 1, 0, 0]), ROLLOUTS, stage="score")


def test_repeated_groups_are_refused_before_the_rollout_only() -> None:
    twice = pa.concat_tables([prompts(), prompts()])
    with pytest.raises(ValueError, match="group_id=0 occurs more than once"):
        require(twice, PROMPTS, stage="rollout")
    require(rollouts(), ROLLOUTS, stage="score")


def test_rows_of_a_pruned_table_are_checked_by_the_columns_that_are_there() -> None:
    check_rows(annotated().select(["group_id", "sample_id", "sample_index"]), stage="x")


def test_a_stamp_is_read_back_and_kept_by_require() -> None:
    table = stamp(rollouts(), run="r1", step=3, stage="rollout", policy_version=2)
    expected = {"run": "r1", "step": "3", "stage": "rollout", "policy_version": "2"}
    assert read_stamp(table) == expected
    assert read_stamp(require(table, ROLLOUTS, stage="score", run="r1", step=3)) == expected


@pytest.mark.parametrize(("run", "step", "named"), [("r1", 4, "step '3'"), ("r2", 3, "run 'r1'")])
def test_a_table_of_another_run_or_step_is_refused(run: str, step: int, named: str) -> None:
    table = stamp(rollouts(), run="r1", step=3, stage="rollout")
    with pytest.raises(ValueError, match=named):
        require(table, ROLLOUTS, stage="score", run=run, step=step)


def test_a_table_without_a_stamp_is_refused_where_a_step_is_expected() -> None:
    with pytest.raises(ValueError, match="not stamped"):
        require(rollouts(), ROLLOUTS, stage="score", step=0)


def test_extending_keeps_rows_and_origin_and_names_the_new_stage() -> None:
    table = stamp(rollouts(), run="r", step=1, stage="rollout")
    wanted = scored().select(SCORED.names[len(ROLLOUTS) :])
    result = extend(
        table, SCORED, {name: wanted.column(name) for name in wanted.column_names}, stage="score"
    )
    assert result.equals(scored())
    assert read_stamp(result) == {"run": "r", "step": "1", "stage": "score"}


def test_extending_with_too_few_columns_is_refused() -> None:
    with pytest.raises(TypeError, match="lacks 'reward_parts'"):
        extend(rollouts(), SCORED, {"reward": np.zeros(4)}, stage="score")


def test_lengths_see_slices_and_chunks() -> None:
    column = pa.chunked_array([pa.array([[1], [1, 2], []]).slice(1), pa.array([[3, 4, 5]])])
    assert lengths(column).tolist() == [2, 0, 3]


def routed(*experts: list[list[int]]) -> pa.Table:
    table = build(ROLLOUTS, len(experts), group_size=1)
    return table.append_column(OPTIONAL.field(0), pa.array(experts, OPTIONAL.field(0).type))


def test_experts_may_stand_beside_the_columns_of_any_stage() -> None:
    table = routed([[0, 1]] * 5, [[2, 3]] * 5)
    checked = require(table.select(table.column_names[::-1]), ROLLOUTS, stage="x")
    assert checked.column_names == [*ROLLOUTS.names, "routed_experts"]
    with pytest.raises(TypeError, match="has unexpected 'routed_experts'"):
        require(prompts(1).append_column("routed_experts", [[[[0]]]]), PROMPTS, stage="x")


def test_experts_of_too_few_tokens_or_of_two_models_are_refused() -> None:
    with pytest.raises(ValueError, match="of row 1 is of 4 tokens, expected 5"):
        require(routed([[0, 1]] * 5, [[2, 3]] * 4), ROLLOUTS, stage="x")
    with pytest.raises(ValueError, match=r"have \[1, 2\] choices"):
        require(routed([[0, 1]] * 5, [[2]] * 5), ROLLOUTS, stage="x")
