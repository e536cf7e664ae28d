"""Runs on preference pairs, from the command line to the summary."""

import json
import math
import os
import signal
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient
from transformers import AutoModelForCausalLM

from tests.workflows.runs import ROOT, Finished, Warm, table_differences

TINY = {
    "job.name": "tiny",
    "model.embedded.hidden_size": 16,
    "model.embedded.num_layers": 1,
    "model.embedded.num_heads": 2,
    "model.embedded.intermediate_size": 16,
    "model.embedded.warm_start_max_steps": 0,
    "data.digits": 1,
    "data.num_held_out": 20,
    "dpo.pairs_per_step": 8,
    "dpo.mini_batches": 2,
    "dpo.save_every": 2,
    "evaluation.num_pairs": 20,
    "evaluation.every": 4,
    "trainer.learning_rate": 0.01,
}
"""Overrides of `dpo_arithmetic`: 80 training pairs, and so 10 steps."""

TOY = {
    "job.name": "toy",
    "denoiser.warm_start_steps": 300,
    "denoiser.num_pairs": 512,
    "denoiser.num_held_out": 64,
    "evaluation.num_pairs": 64,
    "evaluation.every": 0,
    "dpo.beta": 100.0,
    "dpo.epochs": 10,
    "dpo.pairs_per_step": 256,
    "trainer.learning_rate": 0.001,
}


def command(warm: Warm, root: Path, values: dict, *more: str, entry: str = "dpo") -> list[str]:
    words = {"job.output_root": root, "tracking.uri": warm.store, **values}
    overrides = " ".join(f"{key}={value}" for key, value in words.items())
    flow = str(ROOT / "workflows" / "dpo.py")
    return ["pyflyte", "run", flow, entry, "--overrides", overrides, *more]


def run(warm: Warm, root: Path, *more: str, entry: str = "dpo", **changed: object) -> Finished:
    named = {key.replace("__", "."): value for key, value in changed.items()}
    values = {**(TINY if entry == "dpo" else TOY), **named}
    code, output = warm.run(command(warm, root, values, *more, entry=entry), log=root / "log")
    return Finished(code, output, root / str(values["job.name"]))


@pytest.fixture(scope="module")
def whole(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return run(warm, tmp_path_factory.mktemp("dpo"))


def points(warm: Warm, finished: Finished, metric: str) -> dict[int, float]:
    client = MlflowClient(tracking_uri=warm.store)
    history = client.get_metric_history(str(finished.summary["mlflow_run_id"]), metric)
    return {point.step: point.value for point in history}


def test_a_run_starts_at_ln_2_with_margin_0_and_the_accuracy_of_a_coin(
    warm: Warm, whole: Finished
) -> None:
    summary = whole.summary
    assert summary["first_loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert summary["first_accuracy"] == 0.5
    assert points(warm, whole, "val/margin")[0] == pytest.approx(0, abs=1e-6)
    assert summary["last_accuracy"] > 0.5
    assert summary["last_reward"] > summary["first_reward"]


def test_an_epoch_is_as_many_steps_as_its_pairs_fill(warm: Warm, whole: Finished) -> None:
    assert whole.summary["steps"] == 10
    assert whole.checkpoints == [8, 10]
    assert list(points(warm, whole, "train/loss")) == list(range(10))
    assert list(points(warm, whole, "val/accuracy")) == [0, 4, 8, 10]
    assert len(whole.tables) == 10
    assert (whole.directory / "report.html").exists()
    assert whole.output.splitlines()[-1] == whole.summary["checkpoint"]
    assert "eval 10/10" in whole.output
    seconds = whole.summary["seconds"]
    assert {"bootstrap", "prepare", "train", "evaluate", "total"} <= seconds.keys()


def test_a_checkpoint_is_a_hugging_face_directory(whole: Finished) -> None:
    weights = Path(str(whole.summary["checkpoint"])) / "weights"
    assert AutoModelForCausalLM.from_pretrained(weights).config.hidden_size == 16


def test_a_run_that_is_killed_and_started_again_ends_with_the_same_weights(
    warm: Warm, whole: Finished, tmp_path: Path
) -> None:
    log = tmp_path / "killed"
    pid = warm.start(command(warm, tmp_path, TINY), log=log)
    deadline = time.monotonic() + 60
    while not (log.exists() and log.read_text().count("step ") >= 5):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    assert warm.wait(pid) == -signal.SIGKILL
    resumed = run(warm, tmp_path)
    assert "continuing after step" in resumed.output
    assert resumed.weights == whole.weights
    assert table_differences(resumed, whole) == []
    assert list(points(warm, resumed, "train/loss")) == list(range(10))


def test_five_and_five_steps_are_ten(warm: Warm, whole: Finished, tmp_path: Path) -> None:
    constant = {"trainer__lr_schedule": "constant"}
    half = run(warm, tmp_path / "a", dpo__max_steps=5, **constant)
    assert half.summary["steps"] == 5
    resumed = run(warm, tmp_path / "a", **constant)
    assert resumed.weights == run(warm, tmp_path / "b", **constant).weights


def test_another_loss_or_another_reference_cannot_continue_a_run(
    warm: Warm, whole: Finished, tmp_path: Path
) -> None:
    start = str(Path(str(whole.summary["checkpoint"])))
    refused = run(
        warm, tmp_path, "--resume_from", start, dpo__beta=0.2, model__embedded__hidden_size=32
    )
    assert refused.code != 0
    assert "objective.beta: the checkpoint has 0.1, this run has 0.2" in refused.output
    assert "data fingerprint: the checkpoint has" in refused.output
    assert "start over with dpo.resume=off" in refused.output


def test_kept_reference_scores_that_were_exchanged_end_the_run(warm: Warm, tmp_path: Path) -> None:
    first = run(warm, tmp_path, dpo__max_steps=1)
    assert first.code == 0, first.output[-3000:]
    (train,) = tmp_path.glob("cache/reference-*/0.arrow")
    train.write_bytes((train.parent / "1.arrow").read_bytes())
    refused = run(warm, tmp_path, dpo__max_steps=1, job__name="again")
    assert refused.code != 0
    assert "computed with another model, tokenizer or set of pairs" in refused.output


def test_a_step_on_pairs_of_another_reference_is_refused(
    warm: Warm, whole: Finished, tmp_path: Path
) -> None:
    described = json.loads((whole.directory / "run.json").read_text())
    lineage = json.loads(described["lineage"])
    lineage["data fingerprint"] = "another"
    (tmp_path / "run.json").write_text(json.dumps({**described, "lineage": json.dumps(lineage)}))
    table = tmp_path / "pairs" / "00000.arrow"
    table.parent.mkdir()
    table.write_bytes(whole.tables["step-000008.arrow"])
    words = {
        "config": whole.directory / "config.json",
        "run": tmp_path / "run.json",
        "step": 8,
        "policy": whole.directory / "checkpoints" / "step-000008" / "policy.json",
        "auxiliary": "{}",
        "pairs": table.parent,
    }
    argv = ["pyflyte", "run", str(ROOT / "tasks" / "train_pairs.py"), "train_pairs"]
    argv += [word for name, value in words.items() for word in (f"--{name}", str(value))]
    code, output = warm.run(argv, log=tmp_path / "log")
    assert code != 0
    assert "train_pairs: reference log-probabilities have the fingerprint" in output


def test_a_denoiser_learns_to_prefer_and_stays_near_what_it_was(warm: Warm, tmp_path: Path) -> None:
    done = run(warm, tmp_path, entry="dpo_diffusion")
    share = points(warm, done, "val/preferred_share")
    assert done.summary["first_loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert done.summary["first_accuracy"] == 0.5
    assert done.summary["last_accuracy"] > 0.8
    assert 0.3 < share[0] < 0.7
    assert share[20] > share[0] + 0.2
    assert points(warm, done, "val/loss")[20] < 0.5


def test_two_ranks_train_on_pairs_as_one_process(
    warm: Warm, whole: Finished, tmp_path: Path
) -> None:
    done = run(warm, tmp_path, trainer__num_processes=2)
    for metric in ("train/loss", "train/num_chunks", "val/loss"):
        expected = points(warm, whole, metric)
        factor = 2 if metric == "train/num_chunks" else 1
        assert points(warm, done, metric) == pytest.approx(
            {step: factor * value for step, value in expected.items()}, rel=1e-3
        )


def test_two_ranks_train_a_denoiser_as_one_process(warm: Warm, tmp_path: Path) -> None:
    few = {"entry": "dpo_diffusion", "dpo__max_steps": 2}
    ranks = {"trainer__num_processes": 2, "trainer__strategy": "fsdp2"}
    one = run(warm, tmp_path / "one", **few)
    two = run(warm, tmp_path / "two", **few, **ranks)
    losses = points(warm, one, "val/loss")
    assert points(warm, two, "val/loss") == pytest.approx(losses, rel=1e-4)
    assert losses[2] != losses[0]


def test_a_recipe_of_the_other_workflow_is_refused(warm: Warm, tmp_path: Path) -> None:
    argv = command(warm, tmp_path, {"job.name": "other"}, "--recipe", "dpo_diffusion_toy")
    code, output = warm.run(argv, log=tmp_path / "log")
    assert code != 0
    assert "run 'dpo_diffusion' of workflows/dpo.py" in output
    assert not (tmp_path / "other").exists()


def test_an_adapter_learns_preferences_with_its_base_as_the_reference(
    warm: Warm, tmp_path: Path
) -> None:
    done = run(warm, tmp_path, model__lora__rank=2, dpo__max_steps=2)
    assert done.summary["first_loss"] == pytest.approx(math.log(2), abs=1e-6)
    weights = Path(str(done.summary["checkpoint"])) / "weights"
    assert [path.name for path in weights.glob("*.safetensors")] == ["adapter_model.safetensors"]
