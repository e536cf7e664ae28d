"""Tasks that share nothing but an object store compute the bits of one process on a disk."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from fsspec.core import url_to_fs
from moto.server import ThreadedMotoServer

from tests.podrunner import Pods
from tests.workflows.runs import Warm, overrides
from tests.workflows.test_pods import ONE_STEP, assert_equal, tiny
from workflows.grpo import grpo

BUCKET = "s3://runs"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Serve a bucket from this process; return the environment that leads tasks to it."""
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    address, key, secret = f"http://{host}:{port}", "testing", "testing"
    env = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_DEFAULT_REGION": "us-east-1",
        "FLYTE_AWS_ENDPOINT": address,
        "FLYTE_AWS_ACCESS_KEY_ID": key,
        "FLYTE_AWS_SECRET_ACCESS_KEY": secret,
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    bucket, path = url_to_fs(BUCKET, use_listings_cache=False, skip_instance_cache=True)
    bucket.mkdir(path)
    try:
        yield env
    finally:
        server.stop()


def test_a_run_on_an_object_store_gives_the_weights_of_one_on_a_disk(
    warm: Warm, tmp_path: Path, store: dict[str, str]
) -> None:
    changed = {**ONE_STEP, "rollout__shards": 2}
    alone = warm.grpo(tmp_path / "one", **changed)

    def execute(command: list[str], envs: Sequence[Mapping[str, str]], log: Path) -> None:
        warm.execute(command, [{**store, **env} for env in envs], log)

    runner = Pods(execute, tmp_path / "logs", BUCKET)
    runner.run(grpo, overrides=overrides(tmp_path / "many", tracking__uri=warm.store, **changed))
    assert_equal(tiny(tmp_path / "many"), alone)
    bucket, path = url_to_fs(BUCKET, use_listings_cache=False, skip_instance_cache=True)
    kept = {os.path.basename(name) for name in bucket.find(path)}
    assert {"outputs.pb", "futures.pb", "00000.arrow", "model.safetensors"} <= kept
