"""Which policy samples a step's rows, checked against lists written by hand."""

import pytest

from configs.overlap import is_spent, sampled_from
from configs.resolve import resolve
from configs.run import RunConfig


def config(staleness: int, save_every: int) -> RunConfig:
    return resolve("grpo_arithmetic", f"rollout.staleness={staleness} rl.save_every={save_every}")


@pytest.mark.parametrize(
    ("staleness", "save_every", "start", "expected"),
    [
        (0, 4, 0, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (1, 4, 0, [0, 0, 1, 2, 4, 4, 5, 6, 8]),
        (2, 4, 0, [0, 0, 0, 1, 4, 4, 4, 5, 8]),
        (2, 0, 0, [0, 0, 0, 1, 2, 3, 4, 5, 6]),
        (2, 0, 5, [5, 5, 5, 6, 7]),
    ],
)
def test_rows_trail_by_the_staleness_and_never_across_a_checkpoint(
    staleness: int, save_every: int, start: int, expected: list[int]
) -> None:
    steps = range(start, start + len(expected))
    found = [sampled_from(config(staleness, save_every), step, start) for step in steps]
    assert found == expected


def test_nothing_is_in_flight_between_segments() -> None:
    found = [sampled_from(config(2, 0), step, 0) for step in range(38, 44)]
    assert found == [36, 37, 40, 40, 40, 41]


def test_a_resumed_run_samples_what_an_uninterrupted_one_does() -> None:
    at = config(3, 7)
    for start in (7, 35, 42):
        steps = range(start, 60)
        assert [sampled_from(at, step, start) for step in steps] == [
            sampled_from(at, step, 0) for step in steps
        ]


@pytest.mark.parametrize(("staleness", "save_every"), [(0, 4), (1, 4), (3, 4), (2, 0), (5, 9)])
def test_every_policy_is_let_go_once_and_after_its_last_rows(
    staleness: int, save_every: int
) -> None:
    at, num_steps = config(staleness, save_every), 90
    sampler = [sampled_from(at, step, 0) for step in range(num_steps + staleness)]
    released = [
        (policy, step)
        for step in range(num_steps)
        for policy in {step, sampler[step]}
        if is_spent(at, policy, step, 0)
    ]
    last = {
        policy: max([policy, *(s for s, p in enumerate(sampler) if p == policy)])
        for policy in range(num_steps)
    }
    assert sorted(released) == sorted(
        (policy, step) for policy, step in last.items() if step < num_steps
    )
