import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.sampling.drawing import draw
from tasks.sampling.sampler import group_uniforms
from tests.sampling.builders import params

QUARTERS = torch.tensor([0.25, 0.5, 0.25]).log()


def drawn(logits: torch.Tensor, uniforms: list[float], temperature: float = 1.0) -> list[int]:
    rows = logits.expand(len(uniforms), -1)
    return draw(rows, torch.tensor(uniforms, dtype=torch.float64), temperature)[0].tolist()


def test_a_token_is_the_inverse_of_the_cumulative_distribution() -> None:
    uniforms = [0.0, 0.2499, 0.2501, 0.7499, 0.7501, 0.9999]
    assert drawn(QUARTERS, uniforms) == [0, 0, 1, 1, 2, 2]


def test_a_temperature_sharpens_the_distribution() -> None:
    # Squares of 1/4, 1/2, 1/4, normalised: 1/6, 4/6, 1/6.
    assert drawn(QUARTERS, [0.16, 0.17, 0.83, 0.84], temperature=0.5) == [0, 1, 1, 2]
    _, logprobs = draw(QUARTERS[None], torch.tensor([0.5], dtype=torch.float64), 0.5)
    assert logprobs.item() == pytest.approx(math.log(4 / 6), abs=1e-6)


def test_temperature_0_takes_the_likeliest_token_with_its_probability_at_temperature_1() -> None:
    tokens, logprobs = draw(QUARTERS[None], torch.tensor([0.9999], dtype=torch.float64), 0.0)
    assert tokens.tolist() == [1]
    assert logprobs.item() == pytest.approx(math.log(0.5), abs=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 5e-324, 0.5, 1 - 2**-53])
def test_a_token_of_probability_zero_is_never_drawn(uniform: float) -> None:
    logits = torch.tensor([-torch.inf, -1e9, 0.3, -torch.inf, 0.1, -1e9, -torch.inf])
    assert drawn(logits, [uniform])[0] in (2, 4)


@given(
    logits=st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=12),
    uniform=st.floats(0, 1, exclude_max=True),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
)
def test_a_drawn_token_has_a_probability(
    logits: list[float], uniform: float, temperature: float
) -> None:
    tokens, logprobs = draw(
        torch.tensor([logits]), torch.tensor([uniform], dtype=torch.float64), temperature
    )
    expected = (torch.tensor(logits).double() / temperature).log_softmax(-1)
    assert 0 <= tokens.item() < len(logits)
    assert logprobs.item() == pytest.approx(expected[tokens].item(), abs=1e-4)


MANY = [20, 100, 256, 257, 1000, 49_152]
"""Sizes of a vocabulary: few tokens, one block, several, with and without a rest."""


def many(vocabulary: int, *, rows: int = 24, spread: float = 4.0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = spread * torch.randn(rows, vocabulary, generator=generator)
    return logits, torch.rand(rows, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("vocabulary", MANY)
def test_the_inverse_and_its_log_probability_hold_for_any_vocabulary(
    vocabulary: int, temperature: float
) -> None:
    logits, uniforms = many(vocabulary)
    tokens, logprobs = draw(logits, uniforms, temperature)
    expected = (logits.double() / temperature).log_softmax(-1)
    cumulative = torch.cat([torch.zeros(24, 1), expected.exp().cumsum(-1)], -1)
    below = cumulative.gather(-1, tokens[:, None])[:, 0]
    upto = cumulative.gather(-1, tokens[:, None] + 1)[:, 0]
    # Exponentials are float32, so a boundary may be off by that much.
    assert (below - 1e-6 <= uniforms).all()
    assert (uniforms <= upto + 1e-6).all()
    error = (logprobs - expected.gather(-1, tokens[:, None])[:, 0]).abs()
    assert error.max() < 1e-6


@pytest.mark.parametrize("vocabulary", MANY)
def test_a_row_is_drawn_alike_alone_and_among_others(vocabulary: int) -> None:
    logits, uniforms = many(vocabulary)
    tokens, logprobs = draw(logits, uniforms, 1.0)
    for row in range(0, 24, 7):
        one = slice(row, row + 1)
        alone = draw(logits[one], uniforms[one], 1.0)
        assert torch.equal(alone[0], tokens[one])
        assert torch.equal(alone[1], logprobs[one])


@pytest.mark.parametrize("vocabulary", MANY)
def test_the_likeliest_token_is_found_in_any_vocabulary(vocabulary: int) -> None:
    logits, uniforms = many(vocabulary)
    tokens, logprobs = draw(logits, uniforms, 0.0)
    assert torch.equal(tokens, logits.argmax(-1))
    assert logprobs == pytest.approx(logits.double().log_softmax(-1).amax(-1), abs=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 5e-324, 1e-9, 0.5, 1 - 1e-9, 1 - 2**-53])
@pytest.mark.parametrize("vocabulary", MANY)
def test_no_token_of_probability_zero_in_any_vocabulary(vocabulary: int, uniform: float) -> None:
    logits, _ = many(vocabulary, rows=50, spread=12.0)
    impossible = torch.rand(logits.shape, generator=torch.Generator().manual_seed(1)) < 0.9
    impossible[:, -7:] = impossible[:, :7] = True
    impossible[:, 8] = False
    logits[impossible] = -torch.inf
    tokens, logprobs = draw(logits, torch.full((50,), uniform, dtype=torch.float64), 1.0)
    assert logprobs.isfinite().all()
    assert not impossible.gather(-1, tokens[:, None]).any()
    assert tokens.tolist() != [8] * 50 or vocabulary < 257


def test_draws_have_the_frequencies_of_the_distribution() -> None:
    uniforms = np.random.default_rng(0).random(20_000)
    shares = np.bincount(drawn(QUARTERS, uniforms.tolist())) / len(uniforms)
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.01)


def test_a_group_has_one_row_of_uniform_numbers_per_sample() -> None:
    uniforms = group_uniforms(5, params(num_samples=3, max_tokens=7))
    assert uniforms.shape == (3, 7)
    assert len(np.unique(uniforms)) == 21
    assert ((uniforms >= 0) & (uniforms < 1)).all()


@pytest.mark.parametrize("change", [{"seed": 4}, {"step": 3}])
def test_another_seed_or_step_gives_other_numbers(change: dict) -> None:
    assert not np.isin(group_uniforms(5, params(**change)), group_uniforms(5, params())).any()


def test_another_group_gives_other_numbers() -> None:
    assert not np.isin(group_uniforms(6, params()), group_uniforms(5, params())).any()


def test_more_samples_keep_the_first_ones() -> None:
    few, many = (group_uniforms(5, params(num_samples=n)) for n in (2, 6))
    assert np.array_equal(many[:2], few)


def test_neither_batch_size_nor_temperature_changes_the_numbers() -> None:
    other = params(batch_size=1, temperature=0.5, stop_token_ids=(4,))
    assert np.array_equal(group_uniforms(5, other), group_uniforms(5, params()))
