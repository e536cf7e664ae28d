import math

from tasks.evaluation.estimators import wilson_interval
from tasks.evaluation.measuring import measure
from tests.evaluation.builders import outcome_rows


def test_accuracy_is_a_mean_over_prompts() -> None:
    # 3 of 4 and 0 of 1: the mean of the shares is 0.375, the share of all responses would be 0.6.
    table = outcome_rows(num_samples=[4, 4], num_judged=[4, 1], num_correct=[3, 0])
    assert measure(table, [])["val/accuracy"] == 0.375


def test_what_is_not_judged_is_counted_and_lowers_nothing() -> None:
    table = outcome_rows(
        num_samples=[2, 2, 2],
        num_judged=[1, 0, 2],
        num_correct=[1, 0, 2],
        num_error=[1, 0, 0],
        num_timeout=[0, 2, 0],
        mean_reward=[1.0, None, 1.0],
    )
    metrics = measure(table, [2])
    assert metrics["val/accuracy"] == metrics["val/reward_mean"] == 1
    assert (metrics["val/accuracy_low"], metrics["val/accuracy_high"]) == wilson_interval(2, 2)
    assert metrics["val/num_unscored"] == 3
    assert (metrics["val/num_error"], metrics["val/num_timeout"]) == (1, 2)
    assert metrics["val/num_responses"] == 6


def test_pass_at_k_leaves_out_prompts_with_fewer_judged_responses() -> None:
    table = outcome_rows(
        num_samples=[2, 2],
        num_judged=[2, 1],
        num_correct=[1, 0],
        pass_at=[[(1, 0.5), (2, 1.0)], [(1, 0.0)]],
    )
    metrics = measure(table, [1, 2])
    assert (metrics["val/pass_at/1"], metrics["val/pass_at/2"]) == (0.25, 1.0)
    assert (metrics["val/pass_at_low/2"], metrics["val/pass_at_high/2"]) == wilson_interval(1, 1)


def test_lengths_and_cuts_are_per_response() -> None:
    table = outcome_rows(num_samples=[2, 2], num_tokens=[10, 30], num_truncated=[1, 2])
    metrics = measure(table, [])
    assert metrics["val/response_length_mean"] == 10
    assert metrics["val/truncated_fraction"] == 0.75


def test_several_sources_have_an_accuracy_each_under_names_that_stores_take() -> None:
    table = outcome_rows(source=["a (b)", "c.jsonl", "a (b)"], num_correct=[1, 1, 0])
    found = {name: value for name, value in measure(table, []).items() if "_of/" in name}
    assert found == {"val/accuracy_of/a__b_": 0.5, "val/accuracy_of/c.jsonl": 1.0}


def test_one_source_has_no_accuracy_beside_that_of_all() -> None:
    assert not [name for name in measure(outcome_rows(), []) if "_of/" in name]


def test_where_nothing_was_judged_there_is_no_accuracy() -> None:
    table = outcome_rows(num_judged=[0, 0], num_correct=[0, 0], mean_reward=[None, None])
    metrics = measure(table, [1])
    names = ("val/accuracy", "val/accuracy_low", "val/reward_mean", "val/pass_at/1")
    assert all(math.isnan(metrics[name]) for name in names)
