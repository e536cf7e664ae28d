"""A whole run whose rollouts vLLM samples, in one process with the trainer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from tasks.data.arrow import read_table
from tests.workflows.runs import environment, grpo

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` runs these")

TIMEOUT_S = 400
MISMATCH = 1e-3
"""Nats between engine and trainer in float32, on average over the tokens of a step."""


def test_a_run_samples_every_step_from_the_policy_that_it_trains(tmp_path: Path) -> None:
    argv = grpo(
        tmp_path,
        rollout__engine="vllm",
        rl__max_steps=2,
        model__embedded__hidden_size=64,
        model__embedded__initializer_range=0.3,
        trainer__learning_rate=0.01,
    )
    done = subprocess.run(
        [str(Path(sys.executable).with_name(argv[0])), *argv[1:]],
        cwd=tmp_path,
        env={**os.environ, **environment(tmp_path / "scratch")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    summary = json.loads((tmp_path / "tiny" / "summary.json").read_text())
    assert summary["steps"] == 2
    tables = [read_table(path) for path in sorted((tmp_path / "tiny/tables").glob("*.arrow"))]
    digests = [set(table["policy_digest"].to_pylist()) for table in tables]
    assert len(set.union(*digests)) == 2
    for table in tables:
        logprobs = np.concatenate(table["engine_logprobs"].to_pylist())
        assert np.isfinite(logprobs).all()
        assert (logprobs < 0).all()
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    points = client.get_metric_history(summary["mlflow_run_id"], "train/engine/mismatch_mean")
    assert [point.step for point in points] == [0, 1]
    assert all(point.value < MISMATCH for point in points)
