"""Training on rows that an older policy has sampled."""

import pytest

from tasks.trainer.updates import Trained
from tests.trainer.children import computed


def run(name: str) -> Trained:
    return computed("behaviour")[name]


def test_the_lag_is_told() -> None:
    assert run("own rows").metrics["train/policy_lag"] == 0
    assert run("stale").metrics["train/policy_lag"] == 1


def test_ratios_are_taken_against_the_policy_that_sampled() -> None:
    assert run("own rows").metrics["train/ratio/max"] == 1
    assert run("as if its own").metrics["train/ratio/max"] == 1
    assert abs(run("stale").metrics["train/ratio/max"] - 1) > 1e-2


def test_the_policy_that_sampled_and_its_engine_say_the_same() -> None:
    recomputed, engine = run("stale").metrics, run("from the engine").metrics
    for name in ("train/ratio/max", "train/ratio/mean", "train/kl/old", "train/loss"):
        assert engine[name] == pytest.approx(recomputed[name], abs=1e-4)
    assert recomputed["train/engine/mismatch_max"] < 1e-5
    assert engine["train/engine/mismatch_max"] == 0


def test_the_source_of_the_old_log_probabilities_is_part_of_the_identity() -> None:
    assert run("stale").identity != run("from the engine").identity


def test_a_policy_loaded_from_disk_gives_the_same_bits() -> None:
    assert run("cold").policy.digest == run("stale").policy.digest


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("too old", "1 policy versions before the policy to be trained, expected 0 to 0"),
        ("newer", "-1 policy versions before the policy to be trained, expected 0 to 1"),
        ("another", "sampled by policy_version [0], expected 1"),
        ("other weights", "sampled by weights of policy_digest"),
        ("silent engine", "reported no log-probability for 1 tokens that train, first in"),
    ],
)
def test_rows_of_any_other_policy_are_refused(name: str, message: str) -> None:
    assert message in computed("behaviour")["refusals"][name]
