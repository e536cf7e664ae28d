"""What a run of the GRPO workflow leaves behind, and what its result depends on."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from mlflow import MlflowClient
from transformers import AutoModelForCausalLM, AutoTokenizer

from configs.resolve import validate
from tasks.data.arrow import read_table
from tasks.data.schemas import read_stamp
from tests.workflows.runs import Finished, Warm, cold, grpo, table_differences

KEYS = {
    "steps",
    "first_accuracy",
    "last_accuracy",
    "first_reward",
    "last_reward",
    "seconds",
    "mlflow_run_id",
    "checkpoint",
    "weights_digest",
    "config_digest",
    "objective_identity",
}


@pytest.fixture(scope="module")
def first(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return warm.grpo(tmp_path_factory.mktemp("first"))


def tracked(warm: Warm, run: Finished) -> MlflowClient:
    assert run.summary["mlflow_run_id"]
    return MlflowClient(tracking_uri=warm.store)


def test_the_summary_has_exactly_the_promised_keys(first: Finished) -> None:
    summary = first.summary
    assert summary.keys() == KEYS
    assert summary["steps"] == 3
    assert Path(str(summary["checkpoint"])) == first.directory / "checkpoints" / "step-000003"
    stages = {"setup", "bootstrap", "rollout", "score", "annotate", "train", "evaluate"}
    seconds = json.loads(json.dumps(summary["seconds"]))
    assert seconds.keys() == stages | {"orchestration", "total"}
    assert sum(seconds.values()) - seconds["total"] == pytest.approx(seconds["total"])


def test_every_step_has_a_line_and_the_last_line_is_the_checkpoint(first: Finished) -> None:
    lines = first.output.splitlines()
    assert [line[:8] for line in lines if line.startswith("step ")] == [
        "step 1/3",
        "step 2/3",
        "step 3/3",
    ]
    assert lines[-1] == first.summary["checkpoint"]


def test_the_same_seed_gives_the_same_weights_and_the_same_bytes_of_tables(
    warm: Warm, first: Finished, tmp_path: Path
) -> None:
    again = warm.grpo(tmp_path)
    assert again.weights == first.weights
    assert len(first.tables) == 3
    assert table_differences(again, first) == []


def test_another_seed_gives_other_weights_and_tables(
    warm: Warm, first: Finished, tmp_path: Path
) -> None:
    other = warm.grpo(tmp_path, job__seed=1)
    assert other.weights != first.weights
    assert all(other.tables[name] != table for name, table in first.tables.items())


def test_every_step_changes_the_weights(first: Finished) -> None:
    digests = {column(table, "policy_digest")[0] for table in tables(first)}
    assert len(digests | {first.weights}) == 4


def test_evaluation_reports_and_checkpoints_leave_training_as_it_is(
    warm: Warm, first: Finished, tmp_path: Path
) -> None:
    quiet = warm.grpo(
        tmp_path,
        evaluation__every=0,
        evaluation__num_prompts=3,
        evaluation__temperature=0.7,
        tracking__deck_every=0,
        rl__save_every=0,
    )
    assert quiet.weights == first.weights
    assert table_differences(quiet, first) == []
    assert quiet.checkpoints == [3]
    assert not (quiet.directory / "report.html").exists()
    assert (first.directory / "report.html").exists()


def test_superseded_checkpoints_go_and_every_second_one_stays(warm: Warm, tmp_path: Path) -> None:
    kept = warm.grpo(tmp_path, rl__max_steps=5, trainer__keep_last=1, trainer__keep_every=2)
    assert kept.code == 0
    assert kept.checkpoints == [2, 4, 5]


def test_a_checkpoint_is_a_hugging_face_directory(first: Finished) -> None:
    weights = Path(str(first.summary["checkpoint"])) / "weights"
    model = AutoModelForCausalLM.from_pretrained(weights)
    assert model.config.hidden_size == 16
    table = tables(first)[0]
    tokenizer = AutoTokenizer.from_pretrained(weights)
    encoded = tokenizer(column(table, "prompt_text"))["input_ids"]
    assert encoded == column(table, "prompt_tokens")


def test_every_row_says_which_policy_sampled_it_and_which_step_it_is_of(first: Finished) -> None:
    for step, table in enumerate(tables(first)):
        assert table.num_rows == 16
        assert set(column(table, "policy_version")) == {step}
        assert len(set(column(table, "policy_digest"))) == 1
        stamp = read_stamp(table)
        assert (stamp["run"], stamp["step"]) == ("tiny", str(step))
    published = json.loads((first.directory / "checkpoints/step-000002/manifest.json").read_text())
    assert published["digest"] == column(tables(first)[2], "policy_digest")[0]


def test_the_tracking_run_holds_the_config_the_tags_and_one_point_per_step(
    warm: Warm, first: Finished
) -> None:
    client = tracked(warm, first)
    run = client.get_run(str(first.summary["mlflow_run_id"]))
    assert run.info.status == "FINISHED"
    assert run.data.params["rl.mini_batches"] == "2"
    assert run.data.params["config_digest"] == first.summary["config_digest"]
    assert run.data.tags["algorithm"] == "grpo"
    assert run.data.tags["objective_identity"] == first.summary["objective_identity"]
    assert {name.partition("/")[0] for name in run.data.metrics} == {"train", "val", "perf"}
    assert points(client, run.info.run_id, "train/reward/mean") == [0, 1, 2]
    assert points(client, run.info.run_id, "val/accuracy") == [0, 1, 2, 3]
    stored = client.download_artifacts(run.info.run_id, "config.yaml", str(first.directory))
    told = json.loads((first.directory / "config.json").read_text())
    assert validate(yaml.safe_load(Path(stored).read_text())) == validate(told)


def test_from_another_directory_a_run_writes_below_its_output_root_only(
    first: Finished, tmp_path: Path
) -> None:
    cwd = tmp_path / "elsewhere"
    cwd.mkdir()
    done = cold(grpo(Path("out")), cwd=cwd, scratch=tmp_path / "scratch")
    assert done.returncode == 0, done.stderr[-3000:]
    assert [path.name for path in cwd.iterdir()] == ["out"]
    assert (cwd / "out" / "mlflow.db").is_file()
    summary = json.loads((cwd / "out" / "tiny" / "summary.json").read_text())
    assert summary["weights_digest"] == first.weights
    assert Path(summary["checkpoint"]).is_absolute()


def test_a_misspelt_override_ends_the_run_before_anything_is_written(
    warm: Warm, tmp_path: Path
) -> None:
    refused = warm.grpo(tmp_path, rl__grup_size=8)
    assert refused.code != 0
    assert "rl.grup_size: unknown key (got 8); did you mean rollout.group_size?" in refused.output
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_run_whose_rewards_all_fail_is_marked_failed_and_can_go_on_with_a_better_reward(
    warm: Warm, first: Finished, tmp_path: Path
) -> None:
    failed = warm.grpo(tmp_path, reward__provider="graded:broken")
    assert failed.code != 0
    assert "no score today" in failed.output
    run_id = json.loads((failed.directory / "run.json").read_text())["mlflow_run_id"]
    client = MlflowClient(tracking_uri=warm.store)
    assert client.get_run(run_id).info.status == "FAILED"
    assert not (failed.directory / "summary.json").exists()
    assert warm.grpo(tmp_path).weights == first.weights


def tables(run: Finished) -> list[pa.Table]:
    return [read_table(path) for path in sorted((run.directory / "tables").glob("*.arrow"))]


def column(table: pa.Table, name: str) -> list:
    return table.column(name).to_pylist()


def points(client: MlflowClient, run_id: str, metric: str) -> list[int]:
    return [point.step for point in client.get_metric_history(run_id, metric)]


def test_a_run_on_two_ranks_is_that_of_one_process_and_leaves_no_process(
    warm: Warm, first: Finished, tmp_path: Path
) -> None:
    ranks = {"trainer__num_processes": 2, "trainer__strategy": "fsdp2"}
    done = warm.grpo(tmp_path, **ranks)
    for metric in ("train/grad_norm", "train/loss", "train/num_tokens", "train/learning_rate"):
        ours, theirs = (
            [p.value for p in tracked(warm, run).get_metric_history(run.run_id, metric)]
            for run in (done, first)
        )
        assert len(ours) == 3
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4), metric
    assert ranks_below(warm.scratch) == []


def ranks_below(scratch: Path) -> list[str]:
    """The ranks that still run and keep their files under a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes()
        except OSError:
            continue  # it has ended meanwhile, or is another user's
        if f"RANK_STORE={scratch}".encode() in variables:
            found.append(process.name)
    return found
