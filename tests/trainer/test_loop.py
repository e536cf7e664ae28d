"""A training step from directory to directory."""

import pytest

from configs.trainer import Trainer
from tests.trainer.children import computed


def knob(name: str) -> dict[str, float]:
    return computed("loop")["knobs"][name].metrics


def digest(name: str) -> str:
    return computed("loop")["knobs"][name].policy.digest


def test_a_step_makes_the_next_version_of_the_policy() -> None:
    run = computed("loop")
    assert [trained.policy.version for trained in run["live"]] == [1, 2]
    assert len({run["initial"].digest, *[t.policy.digest for t in run["live"]]}) == 3


def test_the_digests_are_those_of_the_written_files() -> None:
    run = computed("loop")
    policy = run["live"][1].policy
    assert run["written"]["digests"] == (policy.digest, policy.state_digest)
    assert run["written"]["counters"] == 2


def test_the_model_that_stays_live_equals_the_written_one() -> None:
    assert computed("loop")["written"]["live"]


def test_steps_from_disk_and_steps_in_one_process_give_the_same_bits() -> None:
    run = computed("loop")
    for live, cold in zip(run["live"], run["cold"], strict=True):
        assert live.policy.digest == cold.policy.digest
        assert live.policy.state_digest == cold.policy.state_digest
        assert live.metrics == pytest.approx(cold.metrics, nan_ok=True)


def test_two_mini_batches_are_two_updates() -> None:
    metrics = knob("two mini-batches")
    assert metrics["train/num_updates"] == 2
    assert digest("two mini-batches") != digest("one mini-batch")


def test_the_second_mini_batch_is_scored_against_the_policy_that_sampled_it() -> None:
    assert knob("one mini-batch")["train/ratio/max"] == 1
    assert abs(knob("two mini-batches")["train/ratio/max"] - 1) > 1e-5


def test_every_trained_token_counts_once_however_many_updates_there_are() -> None:
    names = ("one mini-batch", "two mini-batches", "small chunks")
    assert len({knob(name)["train/num_tokens"] for name in names}) == 1
    assert len({knob(name)["train/weight"] for name in names}) == 1
    assert knob("one mini-batch")["train/num_sequences"] == 8


def test_the_chunk_bound_changes_the_chunks_and_not_the_gradient() -> None:
    small, large = knob("small chunks"), knob("one mini-batch")
    assert small["train/num_chunks"] > large["train/num_chunks"] == 1
    assert small["train/grad_norm"] == pytest.approx(large["train/grad_norm"], rel=1e-5)
    assert small["train/padding_fraction"] <= large["train/padding_fraction"]


def test_a_batch_that_trains_nothing_leaves_the_policy_as_it_was() -> None:
    metrics = knob("all masked")
    assert digest("all masked") == computed("loop")["initial"].digest
    assert metrics["train/num_skipped_updates"] == 1
    assert metrics["train/num_updates"] == 0
    assert metrics["train/grad_norm"] != metrics["train/grad_norm"]


def test_masked_rows_are_outside_the_weight() -> None:
    assert 0 < knob("half masked")["train/weight"] < knob("one mini-batch")["train/weight"]
    assert knob("half masked")["train/num_sequences"] == 4


def test_a_mini_batch_that_trains_nothing_is_skipped_alone() -> None:
    metrics = knob("half masked, two mini-batches")
    assert metrics["train/num_updates"] == metrics["train/num_skipped_updates"] == 1
    assert metrics["train/grad_norm"] == pytest.approx(
        knob("half masked")["train/grad_norm"], rel=1e-5
    )


def test_engine_and_trainer_agree_on_sampled_tokens() -> None:
    assert knob("one mini-batch")["train/engine/mismatch_max"] < 1e-5
    assert knob("one mini-batch")["train/engine/alarm"] == 0


@pytest.mark.parametrize("name", ["one mini-batch", "two mini-batches"])
def test_the_reported_learning_rate_is_that_of_the_last_update(name: str) -> None:
    config, updates = Trainer(), {"one mini-batch": (0, 4), "two mini-batches": (1, 8)}[name]
    step, num_steps = updates
    floor = config.final_lr_fraction
    expected = config.learning_rate * (floor + (1 - floor) * (1 - step / num_steps))
    assert knob(name)["train/learning_rate"] == pytest.approx(expected)


@pytest.mark.parametrize(("name", "rate"), [("one mini-batch", 1e-3), ("warming up", 2.5e-4)])
def test_the_first_update_is_made_at_the_scheduled_learning_rate(name: str, rate: float) -> None:
    assert computed("loop")["moves"][name] == pytest.approx(rate, rel=1e-2)
    assert knob(name)["train/learning_rate"] == pytest.approx(rate)


def test_certification_passes_on_a_float32_model_and_changes_nothing() -> None:
    assert digest("certified") == digest("one mini-batch")


def test_training_leaves_the_random_state_of_the_process_alone() -> None:
    assert computed("loop")["rng untouched"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("version", "sampled by policy_version [3], expected 0"),
        ("digest", "sampled by weights of policy_digest x, expected"),
        ("wrong weight", "reduction proof failed"),
        ("uneven mini-batches", "8 rows do not divide into rl.mini_batches=3"),
    ],
)
def test_a_step_is_refused(name: str, message: str) -> None:
    assert message in computed("loop")["refusals"][name]


def test_the_reduction_proof_can_be_turned_off() -> None:
    assert computed("loop")["refusals"]["wrong weight, unproved"] == ""
