"""Whole runs whose rollouts, and teachers, are in vLLM, in one process with the trainer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from mlflow import MlflowClient

from tasks.data.arrow import read_table
from tasks.data.schemas import read_stamp
from tests.workflows.runs import ROOT, environment, grpo

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` runs these")

from vllm import __version__

TIMEOUT_S = 400
MISMATCH = 1e-3
"""Nats between engine and trainer in float32, on average over the tokens of a step."""


SIZE = {"hidden_size": 64, "initializer_range": 0.3}
"""Of the student and of the teacher: 32 numbers per attention head, and a spread of logits."""


def finished(argv: list[str], root: Path) -> Path:
    """Run a command line in a process of its own; return the directory of the run."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name(argv[0])), *argv[1:]],
        cwd=root,
        env={**os.environ, **environment(root / "scratch")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return root / "tiny"


def tables_of(run: Path) -> list[pa.Table]:
    return [read_table(path) for path in sorted((run / "tables").glob("*.arrow"))]


def metric(root: Path, run: Path, name: str) -> list[float]:
    """The values of a metric, step by step."""
    run_id = json.loads((run / "summary.json").read_text())["mlflow_run_id"]
    client = MlflowClient(tracking_uri=f"sqlite:///{root / 'mlflow.db'}")
    return [point.value for point in client.get_metric_history(run_id, name)]


def test_a_run_samples_every_step_from_the_policy_that_it_trains(tmp_path: Path) -> None:
    argv = grpo(
        tmp_path,
        rollout__engine="vllm",
        rl__max_steps=2,
        trainer__learning_rate=0.01,
        **{f"model__embedded__{name}": value for name, value in SIZE.items()},
    )
    run = finished(argv, tmp_path)
    assert json.loads((run / "summary.json").read_text())["steps"] == 2
    tables = tables_of(run)
    digests = [set(table["policy_digest"].to_pylist()) for table in tables]
    assert len(set.union(*digests)) == 2
    for table in tables:
        logprobs = np.concatenate(table["engine_logprobs"].to_pylist())
        assert np.isfinite(logprobs).all()
        assert (logprobs < 0).all()
        stamp = read_stamp(table)
        told = (stamp["engine"], stamp["engine_version"], stamp["sampling_seed"])
        assert told == ("vllm", __version__, "0")
    mismatches = metric(tmp_path, run, "train/engine/mismatch_mean")
    assert len(mismatches) == 2
    assert max(mismatches) < MISMATCH


def test_student_and_teacher_share_a_process_each_in_an_engine_of_vllm(tmp_path: Path) -> None:
    argv = grpo(
        tmp_path,
        rollout__engine="vllm",
        teacher__engine="vllm",
        teacher__source="embedded",
        teacher__embedded__warm_start_max_steps=0,
        teacher__embedded__num_layers=1,
        teacher__embedded__num_heads=2,
        evaluation__every=0,
        rl__max_steps=2,
        **{f"model__embedded__{name}": value for name, value in SIZE.items()},
        **{f"teacher__embedded__{name}": value for name, value in SIZE.items()},
    )
    words = {"grpo": "opd", str(ROOT / "workflows" / "grpo.py"): str(ROOT / "workflows" / "opd.py")}
    argv = [words.get(word, word) for word in argv]
    run = finished([*argv, "--recipe", "opd_arithmetic"], tmp_path)
    for table in tables_of(run):
        told = np.concatenate(table["teacher_logprobs"].to_pylist())
        own = np.concatenate(table["engine_logprobs"].to_pylist())
        assert np.isfinite(told).all()
        assert np.abs(told - own).mean() > MISMATCH
    assert max(metric(tmp_path, run, "train/engine/mismatch_mean")) < MISMATCH
