"""bfloat16 weights train on float32 copies."""

from pathlib import Path

import torch
from torch import nn

from configs.trainer import Trainer
from tasks.trainer.masters import MasterAdamW
from tasks.trainer.state import TrainerState, build_optimizer, load_state, save_state

SMALL = Trainer(learning_rate=1e-6)


def network(dtype: torch.dtype = torch.bfloat16) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).to(dtype)


def give_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=generator).abs() + 0.1
        parameter.grad = drawn.to(parameter.dtype)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, seeds: range) -> None:
    for seed in seeds:
        give_gradients(model, seed)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def test_an_update_that_bfloat16_cannot_hold_is_kept() -> None:
    model = network()
    optimizer = build_optimizer(model, SMALL)
    before = [master.detach().clone() for master in optimizer.masters]
    steps(model, optimizer, range(1))
    for master, old in zip(optimizer.masters, before, strict=True):
        torch.testing.assert_close(old - master, torch.full_like(old, 1e-6), rtol=0.1, atol=0)


def test_small_updates_add_up_where_without_copies_they_are_lost() -> None:
    start, model, plain = (network() for _ in range(3))
    steps(model, build_optimizer(model, Trainer(learning_rate=1e-5)), range(500))
    steps(plain, torch.optim.AdamW(plain.parameters(), lr=1e-5, weight_decay=0.0), range(500))
    assert moved_share(start, plain) < 0.3
    assert moved_share(start, model) == 1


def moved_share(before: nn.Module, after: nn.Module) -> float:
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    return torch.cat([(old != new).flatten() for old, new in pairs]).float().mean().item()


def test_the_copies_take_the_steps_of_a_float32_model() -> None:
    model, wide = network(), network().float()
    config = Trainer(learning_rate=1e-3, weight_decay=0.1)
    masters, plain = build_optimizer(model, config), build_optimizer(wide, config)
    for seed in range(3):
        give_gradients(model, seed)
        for parameter, other in zip(model.parameters(), wide.parameters(), strict=True):
            other.grad = parameter.grad.float()
        masters.step()
        plain.step()
    for parameter, master, other in zip(
        model.parameters(), masters.masters, wide.parameters(), strict=True
    ):
        assert torch.equal(master, other)
        assert torch.equal(parameter, other.bfloat16())


def test_float32_weights_have_no_copies() -> None:
    assert type(build_optimizer(network(torch.float32), SMALL)) is torch.optim.AdamW
    assert type(build_optimizer(network(), SMALL)) is MasterAdamW


def test_clearing_gradients_clears_the_models() -> None:
    model = network()
    optimizer = build_optimizer(model, SMALL)
    give_gradients(model, 0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    assert all(p.grad is None for p in (*model.parameters(), *optimizer.masters))


def test_a_parameter_without_a_gradient_stays_and_has_no_moments(tmp_path: Path) -> None:
    model = network()
    optimizer = build_optimizer(model, Trainer(learning_rate=1e-2))
    before = model[0].weight.detach().clone()
    give_gradients(model, 0)
    model[0].weight.grad = None
    optimizer.step()
    assert torch.equal(model[0].weight, before)
    save_state(TrainerState(optimizer), model, tmp_path)
    again = load_state(tmp_path, model, SMALL).optimizer
    assert again.state_dict()["state"].keys() == optimizer.state_dict()["state"].keys()


def test_a_restart_continues_with_the_same_bits(tmp_path: Path) -> None:
    straight = network()
    steps(straight, build_optimizer(straight, SMALL), range(40))
    model = network()
    optimizer = build_optimizer(model, SMALL)
    steps(model, optimizer, range(20))
    save_state(TrainerState(optimizer, 20), model, tmp_path)
    restarted = network()
    restarted.load_state_dict(model.state_dict())
    state = load_state(tmp_path, restarted, SMALL)
    assert {v.dtype for values in state.optimizer.state.values() for v in values.values()} == {
        torch.float32
    }
    for master, other in zip(state.optimizer.masters, optimizer.masters, strict=True):
        assert torch.equal(master, other)
    steps(restarted, state.optimizer, range(20, 40))
    digests = [save_state(TrainerState(state.optimizer, 40), restarted, tmp_path)]
    again = network()
    optimizer = build_optimizer(again, SMALL)
    steps(again, optimizer, range(40))
    digests.append(save_state(TrainerState(optimizer, 40), again, tmp_path))
    assert digests[0] == digests[1]
    for one, other in zip(restarted.parameters(), straight.parameters(), strict=True):
        assert torch.equal(one, other)
