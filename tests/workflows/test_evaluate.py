"""Evaluation of any policy by the workflow of its own, from the command line to the comparison."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from mlflow import MlflowClient

from tasks.data.arrow import read_table
from tasks.data.schemas import JUDGED, OUTCOMES, require
from tasks.evaluation.__main__ import main
from tasks.evaluation.record import Kept, read_evaluation
from tests.podrunner import Pods
from tests.workflows.runs import ROOT, Finished, Warm, overrides
from workflows.evaluate import evaluate_policy

SEVERAL = {"evaluation__num_samples": 4, "evaluation__temperature": 1.0}


@pytest.fixture(scope="module")
def run(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    finished = warm.grpo(tmp_path_factory.mktemp("evaluated"), trainer__keep_last=3, **SEVERAL)
    assert finished.checkpoints == [1, 2, 3], finished.output
    return finished


def command(root: Path, checkpoint: object, **changed: object) -> list[str]:
    flow = str(ROOT / "workflows" / "evaluate.py")
    words = ["--overrides", overrides(root, **changed), "--checkpoint", str(checkpoint)]
    return ["pyflyte", "run", flow, "evaluate_policy", *words]


def evaluate(
    warm: Warm, run: Finished, log: Path, checkpoint: object = "", **changed: object
) -> Kept:
    """Evaluate a policy under the settings of a run."""
    words = command(run.directory.parent, checkpoint, **{**SEVERAL, **changed})
    code, output = warm.run(words, log=log)
    assert code == 0, output[-3000:]
    return read_evaluation(Path(output.splitlines()[-1]))


@pytest.fixture(scope="module")
def newest(warm: Warm, run: Finished, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return evaluate(warm, run, tmp_path_factory.mktemp("newest") / "log")


def test_it_measures_what_the_run_measured(warm: Warm, run: Finished, newest: Kept) -> None:
    client = MlflowClient(tracking_uri=warm.store)
    run_id = str(run.summary["mlflow_run_id"])
    for name in ("val/accuracy", "val/reward_mean", "val/pass_at/4", "val/response_length_mean"):
        last = max(client.get_metric_history(run_id, name), key=lambda point: point.step)
        assert last.value == newest.record.metrics[name], name
    assert newest.record.step == 3


def test_it_keeps_every_response_and_a_row_per_prompt(run: Finished, newest: Kept) -> None:
    assert newest.directory.parent == run.directory / "evaluations"
    names = {"config.json", "evaluation.json", "prompts.arrow", "report.html", "responses.arrow"}
    assert {path.name for path in newest.directory.iterdir()} == names
    responses = read_table(newest.directory / "responses.arrow")
    require(responses, JUDGED, stage="test")
    require(newest.outcomes, OUTCOMES, stage="test")
    assert (len(responses), len(newest.outcomes)) == (32, 8)
    assert pc.unique(responses["policy_digest"]).to_pylist() == [run.weights]
    assert newest.record.policy_digest == run.weights
    means = pa.TableGroupBy(responses, "prompt_id", use_threads=False).aggregate(
        [("reward", "mean")]
    )
    assert means["reward_mean"].to_pylist() == newest.outcomes["mean_reward"].to_pylist()


def test_a_copy_of_the_weights_is_evaluated_alike(
    warm: Warm, run: Finished, newest: Kept, tmp_path: Path
) -> None:
    shutil.copytree(run.directory / "checkpoints" / "step-000003" / "weights", tmp_path / "copy")
    copied = evaluate(warm, run, tmp_path / "log", tmp_path / "copy")
    assert (copied.record.step, newest.record.step) == (0, 3)
    assert copied.outcomes.equals(newest.outcomes)
    assert copied.record.metrics == newest.record.metrics


def test_two_policies_are_compared_prompt_by_prompt(
    warm: Warm, run: Finished, newest: Kept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = evaluate(warm, run, tmp_path / "log", "initial")
    assert main(["compare", str(before.directory), str(newest.directory)]) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == ["measure", "accuracy", "pass@2", "pass@4", "reward"]


def test_a_process_for_every_task_measures_the_same(
    warm: Warm, run: Finished, newest: Kept, tmp_path: Path
) -> None:
    words = overrides(run.directory.parent, **SEVERAL)
    kept = json.loads((newest.directory / "evaluation.json").read_text())
    (newest.directory / "evaluation.json").unlink()
    runner = Pods(warm.execute, tmp_path / "logs", str(tmp_path / "pods"))
    runner.run(evaluate_policy, overrides=words)
    assert json.loads((newest.directory / "evaluation.json").read_text()) == kept
    assert {ran.task.rpartition(".")[2] for ran in runner.ran} >= {
        "open_checkpoint",
        "sample_held_out",
        "score_held_out",
        "report_evaluation",
    }


@pytest.mark.parametrize(
    ("checkpoint", "changed", "message"),
    [
        ("/no/such/place", {}, "checkpoint='/no/such/place': no such directory"),
        (
            "initial",
            {"reward__provider": "graded:uneven", "evaluation__correct_part": "some"},
            "evaluation.correct_part='some'",
        ),
    ],
)
def test_what_cannot_be_evaluated_says_why(
    warm: Warm, run: Finished, tmp_path: Path, checkpoint: str, changed: dict, message: str
) -> None:
    words = command(run.directory.parent, checkpoint, **changed)
    code, output = warm.run(words, log=tmp_path / "log")
    assert code != 0
    assert message in output
