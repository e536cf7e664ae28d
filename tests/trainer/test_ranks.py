"""A group of ranks: it stays alive, and it ends with any of them and with its parent."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from configs.resolve import resolve
from tasks.policy.files import PolicyFiles
from tasks.trainer import ranks
from tasks.trainer.launch import launch
from tasks.trainer.ranks import Node, RankError, RankGroup

ROOT = Path(__file__).parents[2]
AT_ONCE_S = 15.0
"""Far less than the minute that the other ranks would sleep, on a busy machine."""


def target(name: str) -> str:
    return f"tests.trainer.rank_targets:{name}"


def pids(group: RankGroup) -> list[int]:
    return [pid for _, _, pid in group.call(target("place"), timeout_s=60)]


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + AT_ONCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def group() -> Iterator[RankGroup]:
    made = RankGroup(3)
    yield made
    made.close()


@pytest.fixture
def no_group() -> Iterator[None]:
    ranks.close()
    yield
    ranks.close()


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RankGroup]]:
    """Two groups of two ranks each, as if on machines of their own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    for name, value in at.items():
        monkeypatch.setenv(name, value)
    made = [RankGroup(4, Node(number, 2)) for number in range(2)]
    yield made
    for group in made:
        group.close()


def on_all(machines: list[RankGroup], failing: int) -> list[object]:
    """Return what each machine's ranks have come to: results, or the error."""

    def call(group: RankGroup) -> object:
        try:
            return group.call(target("meet"), 60, failing, timeout_s=60)
        except RankError as error:
            return str(error)

    with ThreadPoolExecutor(len(machines)) as pool:
        return list(pool.map(call, machines))


def test_ranks_of_two_machines_are_one_group(machines: list[RankGroup]) -> None:
    assert on_all(machines, -1) == [[(0, 0, 10.0), (1, 1, 10.0)], [(2, 0, 10.0), (3, 1, 10.0)]]


def test_a_rank_that_fails_on_one_machine_ends_those_of_the_other(
    machines: list[RankGroup],
) -> None:
    started = time.monotonic()
    first, second = on_all(machines, 2)
    assert "rank 2 of 4 failed: ValueError: no such luck" in str(second)
    assert "of 4 failed" in str(first)
    assert time.monotonic() - started < 2 * AT_ONCE_S


def test_a_machine_that_is_not_told_which_it_is_trains_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    config = resolve("grpo_arithmetic", "trainer.num_nodes=2 trainer.num_processes=2")
    files = PolicyFiles(
        version=0, digest="", state_digest="", weights=tmp_path, trainer_state=tmp_path
    )
    with pytest.raises(ValueError, match=r"num_nodes=2, but RANK, MASTER_ADDR, MASTER_PORT is not"):
        launch(target("place"), config, pa.table({"row": [1]}), files, (tmp_path, tmp_path), {})


def test_every_rank_answers_in_order_and_stays_alive_for_the_next_call(group: RankGroup) -> None:
    first = group.call(target("place"), timeout_s=60)
    assert [place[:2] for place in first] == [(0, 3), (1, 3), (2, 3)]
    assert group.call(target("place"), timeout_s=60) == first


def test_a_rank_that_raises_is_named_with_its_traceback_and_ends_the_others(
    group: RankGroup,
) -> None:
    alive, started = pids(group), time.monotonic()
    with pytest.raises(RankError, match="rank 1 of 3 failed: ValueError: no such luck") as raised:
        group.call(target("fail_on"), 1, timeout_s=60)
    assert time.monotonic() - started < AT_ONCE_S
    assert "in fail_on" in str(raised.value)
    assert not any(map(runs, alive))


def test_a_rank_that_is_killed_is_named_though_others_complain_first(group: RankGroup) -> None:
    alive = pids(group)
    with pytest.raises(RankError, match="rank 2 of 3 died: Killed"):
        group.call(target("die_on"), 2, timeout_s=60)
    assert not any(map(runs, alive))


def test_a_rank_that_died_between_two_calls_is_named(group: RankGroup) -> None:
    victim = pids(group)[1]
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not runs(victim))
    with pytest.raises(RankError, match="rank 1 of 3 died: Killed"):
        group.call(target("place"), timeout_s=60)


def test_a_rank_that_does_not_finish_is_killed_after_the_timeout(group: RankGroup) -> None:
    alive = pids(group)
    with pytest.raises(RankError, match=r"ranks \[1\] of 3 were still busy 0\.5 s after"):
        group.call(target("sleep_on"), 1, timeout_s=0.5)
    assert not any(map(runs, alive))


def test_a_rank_that_never_reaches_a_collective_is_not_waited_for_longer_than_the_timeout() -> None:
    group = RankGroup(2)
    group.call(target("load_torch"), timeout_s=60)
    started = time.monotonic()
    with pytest.raises(RankError, match=r"rank 0 of 2 failed: RuntimeError: .*[Tt]imed out"):
        group.call(target("hang_before_a_collective"), 1, 3.0, timeout_s=60)
    assert time.monotonic() - started < AT_ONCE_S
    assert not group.is_alive


def test_ranks_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    command = [sys.executable, "-m", "tests.trainer.rank_targets", str(file)]
    parent = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_until(lambda: file.exists() and len(file.read_text().split()) == 2)
        alive = [int(word) for word in file.read_text().split()]
        assert all(map(runs, alive))
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not any(map(runs, alive)))


def test_calls_share_a_group_until_another_size_is_asked_for(no_group: None) -> None:
    def call(num_ranks: int) -> int:
        return ranks.call(target("place"), num_ranks=num_ranks, timeout_s=60)[2]

    first = call(2)
    assert call(2) == first
    other = call(1)
    assert other != first
    assert not runs(first)
    assert runs(other)


def test_a_failed_group_is_replaced_by_the_next_call(no_group: None) -> None:
    with pytest.raises(RankError):
        ranks.call(target("fail_on"), 0, num_ranks=1, timeout_s=60)
    assert ranks.call(target("place"), num_ranks=1, timeout_s=60)[:2] == (0, 1)


def test_a_group_leaves_no_files() -> None:
    group = RankGroup(1)
    folder = Path(group._folder)
    assert folder.exists()
    group.close()
    assert not folder.exists()
