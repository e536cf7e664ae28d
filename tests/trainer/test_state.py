from pathlib import Path

import pytest
import torch
from torch import nn

from configs.trainer import Optimizer
from tasks.trainer.state import build_optimizer, load_state, save_state, state_digest

CONFIG = Optimizer(
    learning_rate=0.01, adam_beta1=0.8, adam_beta2=0.95, adam_epsilon=1e-6, weight_decay=0.1
)


def network(width: int = 4, num_layers: int = 2) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(*[nn.Linear(width, width) for _ in range(num_layers)])


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


def saved(to: Path, **shape: int) -> nn.Module:
    model = network(**shape)
    state = load_state(to, model, CONFIG)
    for seed in range(3):
        take_step(model, state.optimizer, seed)
    state.num_updates = 3
    save_state(state, model, to)
    return model


def test_a_first_update_is_adamw_by_hand(tmp_path: Path) -> None:
    model = network()
    before = model[0].weight.detach().clone()
    take_step(model, load_state(tmp_path, model, CONFIG).optimizer, 0)
    gradient = model[0].weight.grad
    expected = before * (1 - 0.01 * 0.1) - 0.01 * gradient / (gradient.abs() + 1e-6)
    torch.testing.assert_close(model[0].weight.detach(), expected, rtol=1e-6, atol=1e-7)


def test_a_second_update_has_the_configured_moments(tmp_path: Path) -> None:
    model = network()
    optimizer = load_state(tmp_path, model, CONFIG).optimizer
    take_step(model, optimizer, 0)
    first, before = model[0].weight.grad, model[0].weight.detach().clone()
    take_step(model, optimizer, 1)
    second = model[0].weight.grad
    mean = (0.8 * 0.2 * first + 0.2 * second) / (1 - 0.8**2)
    square = (0.95 * 0.05 * first**2 + 0.05 * second**2) / (1 - 0.95**2)
    expected = before * (1 - 0.01 * 0.1) - 0.01 * mean / (square.sqrt() + 1e-6)
    torch.testing.assert_close(model[0].weight.detach(), expected, rtol=1e-5, atol=1e-6)


def test_a_restart_continues_with_the_same_bits(tmp_path: Path) -> None:
    original = saved(tmp_path)
    restarted = network()
    restarted.load_state_dict(original.state_dict())
    state = load_state(tmp_path, restarted, CONFIG)
    assert state.num_updates == 3

    straight = network()
    optimizer = build_optimizer(straight, CONFIG)
    for seed in range(4):
        take_step(straight, optimizer, seed)
    take_step(restarted, state.optimizer, 3)
    for expected, got in zip(straight.parameters(), restarted.parameters(), strict=True):
        assert torch.equal(expected, got)


def test_a_restart_takes_its_knobs_from_the_config_and_not_from_the_state(tmp_path: Path) -> None:
    saved(tmp_path)
    other = CONFIG.model_copy(update={"learning_rate": 0.5, "weight_decay": 0.0})
    (group,) = load_state(tmp_path, network(), other).optimizer.param_groups
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.5, 0.0, (0.8, 0.95))


def test_a_directory_without_a_state_gives_a_fresh_one(tmp_path: Path) -> None:
    state = load_state(tmp_path, network(), CONFIG)
    assert state.num_updates == 0
    assert state.optimizer.state_dict()["state"] == {}


def test_the_state_of_a_larger_model_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, num_layers=3)
    with pytest.raises(ValueError, match=r"belongs to another model: start with rl\.resume=off"):
        load_state(tmp_path, network(num_layers=2), CONFIG)


def test_the_state_of_a_smaller_model_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, num_layers=1)
    with pytest.raises(ValueError, match=r"belongs to another model"):
        load_state(tmp_path, network(num_layers=2), CONFIG)


def test_the_state_of_a_narrower_model_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, width=3)
    with pytest.raises(ValueError, match=r"belongs to another model"):
        load_state(tmp_path, network(width=4), CONFIG)


def test_frozen_parameters_have_no_state(tmp_path: Path) -> None:
    model = network()
    model[0].requires_grad_(requires_grad=False)
    optimizer = build_optimizer(model, CONFIG)
    assert len(optimizer.param_groups[0]["params"]) == 2


def test_the_digest_is_of_moments_and_counters(tmp_path: Path) -> None:
    model = network()
    state = load_state(tmp_path, model, CONFIG)
    take_step(model, state.optimizer, 0)
    state.num_updates = 1
    first = save_state(state, model, tmp_path)
    assert first == state_digest(tmp_path) == save_state(state, model, tmp_path)
    state.num_updates = 2
    assert save_state(state, model, tmp_path) != first
    state.num_updates = 1
    take_step(model, state.optimizer, 1)
    assert save_state(state, model, tmp_path) != first
