import pytest

from tests.bench.comparison import SIDES, medians, records
from tests.bench.work import EMBEDDED, SMOLLM2, Report, Step


def figures(**changed: float) -> dict[str, float]:
    plain = {
        "generate_s": 2.0,
        "rest_s": 4.0,
        "step_s": 6.0,
        "samples_per_s": 10.0,
        "peak_rss_mib": 100.0,
        "prompt_tokens": 50,
        "completion_tokens": 40,
    }
    return {**plain, **changed}


def by_phase(rows: list[dict]) -> dict[str, dict]:
    return {row["phase"]: row for row in rows if "phase" in row}


def test_each_side_is_the_median_of_its_turns() -> None:
    turns = [("ours", figures(step_s=6.0)), ("peer", figures()), ("ours", figures(step_s=10.0))]
    assert medians(turns)["ours"]["step_s"] == 8.0


@pytest.mark.parametrize("key", ["prompt_tokens", "completion_tokens"])
def test_sides_that_did_different_work_are_not_compared(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        medians([("ours", figures()), ("peer", figures(**{key: 39}))])


def test_faster_phases_less_memory_and_more_samples_are_better() -> None:
    peer = figures(generate_s=4.0, rest_s=2.0, samples_per_s=5.0, peak_rss_mib=300.0)
    rows = by_phase(
        records(EMBEDDED.name, {"ours": figures(), "peer": peer, "bare": figures(step_s=5.0)})
    )
    ratios = {phase: row["ratio"] for phase, row in rows.items()}
    assert ratios == {
        "generate": 2.0,
        "rest": 0.5,
        "end to end": 1.0,
        "samples/s": 2.0,
        "peak RSS MiB": 3.0,
    }


def test_the_floor_is_our_seconds_over_those_of_the_plain_loop() -> None:
    rows = records(EMBEDDED.name, {"ours": figures(), "bare": figures(step_s=5.0)})
    floor = {row["check"]: row["value"] for row in rows if "check" in row}
    assert floor["embedded: end to end, seconds over a plain loop's"] == 1.2
    assert floor["embedded: generate, seconds over a plain loop's"] == 1.0


def test_environments_that_are_not_there_leave_rows_that_say_so() -> None:
    rows = by_phase(records(SMOLLM2.name, {"ours": figures(), "bare": figures()}))
    assert rows["end to end"]["ours"] == 6.0
    assert rows["end to end"]["peer"] is None
    assert rows["generate, ours by vLLM"]["ours"] is None


def test_ours_and_the_plain_loop_need_no_other_environment() -> None:
    assert {side.name for side in SIDES if side.is_ready()} >= {"ours", "bare"}


def test_the_first_step_counts_in_no_figure() -> None:
    slow, one, other = (
        Step(generate_s=g, step_s=s, prompt_tokens=5, completion_tokens=8)
        for g, s in ((50.0, 90.0), (1.0, 3.0), (2.0, 5.0))
    )
    told = Report(side="ours", num_rows=8, steps=[slow, one, other]).figures()
    assert (told["generate_s"], told["step_s"], told["rest_s"]) == (1.5, 4.0, 2.5)
    assert (told["samples_per_s"], told["completion_tokens"]) == (2.0, 16)
    assert told["peak_rss_mib"] > 1
