"""What a response that hangs or crashes costs: itself, and nothing else."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from configs.reward import Reward
from tasks.rewards.pool import Pool, close_resident_pool, resident_pool
from tasks.rewards.reward import Score
from tasks.rewards.score import score
from tasks.rewards.seat import Job, Seat
from tests.data.tables import rollouts

FUNCTIONS = "tests.rewards.functions"
HANGS = ["loop", "sleep", "swallow", "power", "count"]
CRASHES = ["exit", "leave", "segfault"]
RAISES = ["memory", "grow", "deep"]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    pool = Pool(2, 256)
    yield pool
    pool.close()


def job(name: str = "obeys", timeout_s: float = 3.0) -> Job:
    return Job(f"{FUNCTIONS}:{name}", {}, timeout_s)


def rows(*texts: str, answer: str = "ok", payload: str = "") -> list[tuple[str, str, str]]:
    return [(text, answer, payload) for text in texts]


def statuses(scores: list[Score | None]) -> list[str | None]:
    return [None if score is None else score.status for score in scores]


def pid(seat: Seat) -> int:
    [(_, score)] = seat.score(job("process"), rows("a"))
    return int(score.value or 0)


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("text", "status"),
    [(t, "timeout") for t in HANGS] + [(t, "error") for t in CRASHES + RAISES],
)
def test_whatever_a_response_does_it_costs_that_response_alone(
    pool: Pool, text: str, status: str
) -> None:
    scores = pool.score(
        job(timeout_s=0.8 if status == "timeout" else 5.0), rows("a", text, "b", "c")
    )
    assert statuses(scores) == ["ok", status, "ok", "ok"]
    assert [score.value for score in scores if score] == [1.0, None, 1.0, 1.0]


def test_what_happened_is_told(pool: Pool) -> None:
    details = [
        s.detail
        for s in pool.score(job(timeout_s=0.5), rows("sleep", "leave", "segfault", "deep"))
        if s
    ]
    expected = ["reward.timeout_s=0.5", "exit status 3", "Segmentation fault", "RecursionError"]
    assert all(text in detail for text, detail in zip(expected, details, strict=True)), details


def test_after_twenty_that_hang_the_next_is_scored_at_once(pool: Pool) -> None:
    pool.load(job())
    started = time.monotonic()
    scores = pool.score(job(timeout_s=0.1), rows(*["sleep"] * 20))
    assert statuses(scores) == ["timeout"] * 20
    assert time.monotonic() - started < 20 * 1.0
    started = time.monotonic()
    assert statuses(pool.score(job(), rows("fine"))) == ["ok"]
    assert time.monotonic() - started < 3.0


def test_workers_are_kept_from_call_to_call_and_replaced_only_when_lost(pool: Pool) -> None:
    before = [pid(seat) for seat in pool.seats]
    assert len({os.getpid(), *before}) == 3
    assert [pid(seat) for seat in pool.seats] == before
    assert [s.status for _, s in pool.seats[0].score(job(), rows("exit"))] == ["error"]
    after = [pid(seat) for seat in pool.seats]
    assert (after[0] != before[0], after[1] == before[1]) == (True, True)


def test_order_and_parts_survive_batches_of_several_workers(pool: Pool) -> None:
    many = [(str(i), str(i - i % 3), "p" * (i % 5)) for i in range(333)]
    scores = pool.score(job("right"), many)
    assert [s.value for s in scores if s] == [float(i % 3 == 0) for i in range(333)]
    assert [s.parts["of"] for s in scores if s] == [i % 5 for i in range(333)]


def test_a_response_longer_than_any_pipe_and_odd_characters_arrive(pool: Pool) -> None:
    text = "\ud800\x00\u2028" + "x" * 2_000_000
    assert statuses(pool.score(job("right"), rows(text, answer=text))) == ["ok"]
    assert [s.value for s in pool.score(job("right"), rows(text, answer=text)) if s] == [1.0]


def test_printing_does_not_disturb_the_replies(pool: Pool) -> None:
    assert statuses(pool.score(job(), rows("print", "print"))) == ["ok", "ok"]


def test_scoring_works_in_a_thread_and_in_several_at_once(pool: Pool) -> None:
    results: list[list[str | None]] = []

    def work() -> None:
        results.append(statuses(pool.score(job(timeout_s=0.6), rows("a", "sleep", "b"))))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [["ok", "timeout", "ok"]] * 3


def test_a_worker_computes_with_one_thread(pool: Pool) -> None:
    assert [s.parts for s in pool.score(job("process"), rows("a")) if s] == [{"threads": 1.0}]


def test_what_a_hanging_response_started_ends_with_it(pool: Pool, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    assert statuses(pool.score(job("starts_a_child", 0.8), rows("a", payload=str(file)))) == [
        "timeout"
    ]
    assert eventually(lambda: not is_running(int(file.read_text())))


@contextlib.contextmanager
def parent(*arguments: str) -> Iterator[tuple[subprocess.Popen, list[int]]]:
    """Start `tests/rewards/dies.py`; give its process and the ids of its workers."""
    command = [sys.executable, "-m", "tests.rewards.dies", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, [int(word) for word in process.stdout.readline().split()]
        finally:
            process.kill()


def test_a_killed_parent_leaves_no_worker_idle_or_busy_nor_their_children(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with parent(str(file)) as (process, workers):
        assert eventually(lambda: file.exists() and file.read_text() != "")
        everyone = [*workers, int(file.read_text())]
        assert [is_running(one) for one in everyone] == [True] * 4
        process.kill()
        assert eventually(lambda: not any(is_running(one) for one in everyone))


def test_an_interrupt_ends_a_step_at_once_and_its_workers_with_it() -> None:
    with parent() as (process, workers):
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert eventually(lambda: not any(is_running(worker) for worker in workers))


def test_a_process_that_ends_ends_its_workers() -> None:
    program = (
        "from tasks.rewards.pool import resident_pool; from tasks.rewards.seat import Job\n"
        f"job = Job('{FUNCTIONS}:process', {{}}, 5.0)\n"
        "print(int(resident_pool(1, 0).score(job, [('', '', '')])[0].value))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    assert eventually(lambda: not is_running(int(done.stdout)))


def test_the_pool_stays_until_its_settings_change() -> None:
    first = resident_pool(1, 512)
    assert resident_pool(1, 512) is first
    worker = pid(first.seats[0])
    assert resident_pool(2, 512) is not first
    assert not is_running(worker)
    close_resident_pool()


def test_async_responses_wait_side_by_side_and_time_out_alone(pool: Pool) -> None:
    pool.load(job("waits"))
    started = time.monotonic()
    scores = pool.score(job("waits", 2.0), rows(*["a"] * 60, "raise", "hang"))
    assert statuses(scores) == ["ok"] * 60 + ["error", "timeout"]
    assert time.monotonic() - started < 60 * 0.3 / 2


def test_an_async_response_that_blocks_costs_itself_alone(pool: Pool) -> None:
    scores = pool.score(job("waits", 0.5), rows("a", "b", "block", *["c"] * 13))
    assert statuses(scores) == ["ok", "ok", "timeout"] + ["ok"] * 13


@pytest.mark.parametrize("name", ["batched", "batched_async"])
def test_a_batched_function_gets_several_responses_at_once(pool: Pool, name: str) -> None:
    scores = pool.score(job(name), rows(*["ok", "no"] * 64))
    assert [s.value for s in scores if s] == [1.0, 0.0] * 64
    assert {s.parts["of"] for s in scores if s} == {16.0}


@pytest.mark.parametrize(
    ("text", "status"),
    [("hang", "timeout"), ("exit", "error"), ("raise", "error"), ("few", "error")],
)
def test_a_batch_with_one_bad_response_loses_that_one(pool: Pool, text: str, status: str) -> None:
    scores = pool.score(job("batched", 0.8), rows(*["ok"] * 14, text, *["ok"] * 9))
    assert statuses(scores) == ["ok"] * 14 + [status] + ["ok"] * 9


def test_too_many_failures_stop_a_step_without_trying_the_rest() -> None:
    table = rollouts(200, response_text=["sleep"] * 200)
    reward = Reward(
        provider=f"{FUNCTIONS}:obeys", timeout_s=0.2, num_workers=2, max_error_fraction=0.02
    )
    with pytest.raises(
        ValueError, match=r"^[56] of 200 .*max_error_fraction=0\.02.*reward\.timeout_s=0\.2"
    ):
        score(table, reward)
    close_resident_pool()


def test_hanging_responses_are_counted_as_timeouts_with_a_null_reward() -> None:
    table = rollouts(response_text=["sleep", "a", "exit", "b"])
    reward = Reward(
        provider=f"{FUNCTIONS}:obeys", timeout_s=0.8, num_workers=1, max_error_fraction=0.5
    )
    result = score(table, reward)
    assert result.column("reward").to_pylist() == [None, 1.0, None, 1.0]
    assert result.column("reward_status").to_pylist() == ["timeout", "ok", "error", "ok"]
    close_resident_pool()


def test_a_function_whose_module_cannot_be_imported_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exits_when_imported.py").write_text("import os; os._exit(7)")
    monkeypatch.syspath_prepend(tmp_path)
    pool = Pool(1, 0)
    with pytest.raises(ValueError, match=r"reward\.provider='no\.such:f'.*No module named 'no'"):
        pool.load(Job("no.such:f", {}, 1.0))
    with pytest.raises(ValueError, match=r"'exits_when_imported:f' cannot be imported.*status 7"):
        pool.load(Job("exits_when_imported:f", {}, 1.0))
    assert statuses(pool.score(job(), rows("a"))) == ["ok"]
    pool.close()


def test_no_rows_need_no_worker() -> None:
    fresh = Pool(1, 0)
    assert fresh.score(Job("no.such:f", {}, 1.0), []) == []
