from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from objectives.objective import Objective
from tasks.trainer.loop import require_columns
from tasks.trainer.proofs import attest, certify_forward, pick_proof_rows, stagger
from tests.data.tables import annotated
from tests.trainer import losses
from tests.trainer.builders import batch_of, make_rows
from tests.trainer.children import computed

WRONG = ["sequences as tokens", "weight of another mask", "small and wrong", "tokens under MEAN"]
PRECISIONS = {"fp32": 1e-6, "fp64": 1e-12}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", [*losses.RECIPES, "token mean", "two terms", "mean"])
def test_objectives_with_their_own_weight_pass_the_reduction_proof(
    name: str, precision: str
) -> None:
    assert computed("proof")[precision][name] <= PRECISIONS[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", WRONG)
def test_objectives_with_another_weight_are_stopped(name: str, precision: str) -> None:
    message = computed("proof")[precision][name]
    assert message.startswith("reduction proof failed: the gradient over 4 rows differs by 0.")
    assert "not of the same unit, or not of the same mask" in message
    assert "rl.builder owns this code" in message


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_gradient_that_is_0_but_for_rounding_passes(precision: str) -> None:
    assert computed("proof")[precision]["rounding alone"] > PRECISIONS[precision]


def test_proof_rows_are_those_that_train_and_with_an_advantage_first() -> None:
    rows = make_rows(((2, 2),) * 7, masked=(0, 3))
    advantages = np.array([1, 0, 2, 3, 0, 4, 5], dtype=np.float32)
    rows = replace(rows, advantages=advantages)
    assert pick_proof_rows(rows).tolist() == [2, 5, 6, 1]
    assert pick_proof_rows(rows, 2).tolist() == [2, 5]


def test_staggered_rows_train_one_token_two_tokens_and_so_on_and_the_last_none() -> None:
    batch = stagger(batch_of(make_rows(((2, 5),) * 4)))
    assert batch.token_counts.tolist() == [1, 2, 3, 0]
    assert batch.loss_mask.sum(1).tolist() == [1, 2, 3, 0]
    assert batch.loss_mask[1].tolist() == [True, True, False, False, False]


def test_staggered_rows_have_advantages_of_either_sign_so_that_no_gradient_vanishes() -> None:
    batch = batch_of(make_rows(((2, 5),) * 4))
    batch = stagger(replace(batch, advantages=torch.zeros(4)))
    assert batch.advantages.tolist() == [1, -1, 1, -1]


def test_staggering_counts_from_the_first_token_that_trains() -> None:
    rows = make_rows(((2, 5), (2, 5), (2, 5)))
    rows.masks[1][:2] = False
    assert stagger(batch_of(rows)).loss_mask[1].tolist() == [False, False, True, True, False]


def test_rows_of_the_policy_itself_are_attested() -> None:
    attest(np.array([7, 7]), ["d"], version=7, digest="d")


def test_rows_of_another_version_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sampled by policy_version \[5, 6\], expected 7"):
        attest(np.array([6, 7, 5]), ["d"], version=7, digest="d")


def test_rows_of_other_weights_with_the_same_version_are_refused() -> None:
    with pytest.raises(ValueError, match=r"policy_digest e, expected d, though both are called"):
        attest(np.array([7, 7]), ["d", "e"], version=7, digest="d")


def test_a_forward_pass_within_a_tenth_of_the_clip_range_is_certified() -> None:
    certify_forward({1: -2.0, 2: -3.0}, {2: -3.019, 1: -2.0}, smaller_epsilon=0.2)


def test_a_forward_pass_beyond_it_is_refused_with_the_numbers() -> None:
    message = (
        r"sample 2 has a mean log-ratio of 0\.021 nats between two chunkings of the same weights, "
        r"expected at most 0\.02 \(a tenth of the smaller epsilon 0\.2\)"
    )
    with pytest.raises(ValueError, match=message):
        certify_forward({1: -2.0, 2: -3.0}, {1: -2.001, 2: -3.021}, smaller_epsilon=0.2)


def test_a_forward_pass_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sample 1 has a mean log-ratio of nan"):
        certify_forward({1: float("nan"), 2: -3.0}, {1: -2.0, 2: -3.0}, smaller_epsilon=0.2)


def test_a_forward_pass_that_is_not_a_number_in_a_later_sample_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sample 2 has a mean log-ratio of nan"):
        certify_forward({1: -2.0, 2: float("nan")}, {1: -2.0, 2: -3.0}, smaller_epsilon=0.2)


def requiring(*names: str) -> Objective:
    return replace(losses.custom(losses.token_mean), requires=names)


def test_a_table_with_all_required_columns_is_accepted() -> None:
    require_columns(requiring("advantage", "engine_logprobs"), annotated())


def test_a_missing_column_is_named() -> None:
    with pytest.raises(ValueError, match=r"requires column 'teacher_logprobs', but the table has"):
        require_columns(requiring("advantage", "teacher_logprobs"), annotated())


def test_a_column_of_nulls_alone_is_named() -> None:
    table = annotated().append_column("score", pa.array([None] * 4, pa.float32()))
    with pytest.raises(ValueError, match=r"requires column 'score', but .* holds only nulls"):
        require_columns(requiring("score"), table)
