import pytest
import torch

from objectives.primitives.denoising import denoising_error, denoising_target, noised

CLEAN, NOISE = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -1.0]])
SIGNAL, SPREAD = torch.tensor([0.8]), torch.tensor([0.6])


def test_noise_and_signal_are_mixed_by_their_factors() -> None:
    mixed = noised(CLEAN, NOISE, SIGNAL, SPREAD)
    torch.testing.assert_close(mixed, torch.tensor([[2.6, 1.0]]))


def test_noise_and_velocity_are_the_targets() -> None:
    noise = denoising_target(CLEAN, NOISE, SIGNAL, SPREAD, prediction="noise")
    velocity = denoising_target(CLEAN, NOISE, SIGNAL, SPREAD, prediction="velocity")
    assert torch.equal(noise, NOISE)
    torch.testing.assert_close(velocity, torch.tensor([[1.8, -2.0]]))


def test_velocity_and_noisy_point_give_back_the_clean_one() -> None:
    velocity = denoising_target(CLEAN, NOISE, SIGNAL, SPREAD, prediction="velocity")
    back = SIGNAL * noised(CLEAN, NOISE, SIGNAL, SPREAD) - SPREAD * velocity
    torch.testing.assert_close(back, CLEAN)


def test_the_error_of_a_point_has_the_gradient_of_a_mean_square() -> None:
    predicted = torch.tensor([[1.0, 4.0], [0.0, 0.0]], requires_grad=True)
    error = denoising_error(predicted, torch.tensor([[0.0, 2.0], [0.0, 0.0]]))
    assert error.tolist() == [2.5, 0.0]
    error.sum().backward()
    assert predicted.grad is not None
    assert predicted.grad.tolist() == [[1.0, 2.0], [0.0, 0.0]]


def test_another_prediction_and_disagreeing_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="prediction is 'score', expected one of noise, velocity"):
        denoising_target(CLEAN, NOISE, SIGNAL, SPREAD, prediction="score")
    with pytest.raises(ValueError, match="noise has shape"):
        noised(CLEAN, NOISE[:, :1], SIGNAL, SPREAD)
    with pytest.raises(ValueError, match="signal or spread has shape"):
        noised(CLEAN, NOISE, SIGNAL.repeat(2), SPREAD)
    with pytest.raises(ValueError, match="predicted has shape"):
        denoising_error(CLEAN[:, :1], CLEAN)
