import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks.tracking.metrics import history, log_step
from tasks.tracking.runs import Status, create_run, finish, flatten, reopen_run, run_tags
from tasks.tracking.store import open_store

CONFIG = "rl:\n  max_steps: 2\n"
PARAMS = {"algorithm": "grpo", "rl": {"max_steps": 2, "kl_beta": 0.0}}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> MlflowClient:
    return open_store("", tmp_path_factory.mktemp("store"))


def new_run(
    client: MlflowClient,
    *,
    params: Mapping[str, object] = PARAMS,
    tags: Mapping[str, str] | None = None,
    config_text: str = CONFIG,
) -> str:
    return create_run(
        client,
        experiment="flyte-posttrain",
        run_name="first",
        params=params,
        tags=tags or {},
        config_text=config_text,
    )


def reopen(
    client: MlflowClient,
    run_id: str,
    *,
    params: Mapping[str, object] = PARAMS,
    tags: Mapping[str, str] | None = None,
    config_text: str = CONFIG,
) -> None:
    reopen_run(client, run_id, params=params, tags=tags or {}, config_text=config_text)


def artifact(client: MlflowClient, run_id: str, name: str) -> str:
    return (Path(client.get_run(run_id).info.artifact_uri) / name).read_text()


def test_a_run_starts_with_its_whole_configuration(client: MlflowClient) -> None:
    run_id = new_run(client)
    run = client.get_run(run_id)
    assert run.info.status == "RUNNING"
    assert run.info.run_name == "first"
    assert client.get_experiment_by_name("flyte-posttrain").experiment_id == run.info.experiment_id
    assert artifact(client, run_id, "config.yaml") == CONFIG
    assert run.data.params == {
        "algorithm": "grpo",
        "rl.max_steps": "2",
        "rl.kl_beta": "0.0",
        "config_digest": hashlib.sha256(CONFIG.encode()).hexdigest(),
    }


def test_a_run_says_what_it_is(client: MlflowClient) -> None:
    tags = run_tags(
        algorithm="grpo",
        objective_identity="ab12",
        data_fingerprint="cd34",
        code_version="0.1.0",
        flyte_execution="local",
        seed=7,
    )
    stored = client.get_run(new_run(client, tags=tags)).data.tags
    assert (
        stored.items()
        >= {
            "algorithm": "grpo",
            "objective_identity": "ab12",
            "data_fingerprint": "cd34",
            "code_version": "0.1.0",
            "flyte_execution": "local",
            "seed": "7",
        }.items()
    )


def test_long_values_are_cut_and_still_differ_by_digest(client: MlflowClient) -> None:
    one, two = (new_run(client, params={"p": "x" * 600}, config_text=text) for text in "ab")
    first, second = client.get_run(one).data.params, client.get_run(two).data.params
    assert first["p"] == second["p"] == "x" * 497 + "..."
    assert first["config_digest"] != second["config_digest"]


def test_flatten_writes_values_as_json() -> None:
    params = {"a": {"b": True, "c": None}, "d": [1, "x"], "e": {}, "f": "text"}
    assert flatten(params) == {
        "a.b": "true",
        "a.c": "null",
        "d": '[1, "x"]',
        "e": "{}",
        "f": "text",
    }


def test_more_params_than_one_request_may_hold_are_all_logged(client: MlflowClient) -> None:
    run_id = new_run(client, params={f"p{number}": number for number in range(150)})
    assert len(client.get_run(run_id).data.params) == 151


@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "KILLED"])
def test_a_run_is_closed_and_reopened_by_id(client: MlflowClient, status: Status) -> None:
    run_id = new_run(client)
    finish(client, run_id, status)
    closed = client.get_run(run_id).info
    assert (closed.status, closed.end_time is not None) == (status, True)
    reopen(client, run_id)
    assert client.get_run(run_id).info.status == "RUNNING"


def test_a_reopened_run_knows_what_others_logged_meanwhile(client: MlflowClient) -> None:
    run_id = new_run(client)
    log_step(client, run_id, 1, {"loss": 1.0})
    client.log_metric(run_id, "loss", 3.0, step=3)
    reopen(client, run_id)
    log_step(client, run_id, 2, {"loss": 2.0})
    assert history(client, run_id, "loss") == [(1, 1.0), (3, 3.0)]


def test_an_unknown_status_is_refused(client: MlflowClient) -> None:
    with pytest.raises(ValueError, match=r"'DONE'.*FINISHED, FAILED, KILLED"):
        finish(client, new_run(client), "DONE")


def test_reopening_with_the_same_configuration_tells_no_difference(client: MlflowClient) -> None:
    run_id = new_run(client)
    reopen(client, run_id, tags={"flyte_execution": "second"})
    run = client.get_run(run_id)
    assert run.data.tags["flyte_execution"] == "second"
    assert "config_diff" not in run.data.tags


def test_reopening_adds_new_params_and_tells_changed_ones(client: MlflowClient) -> None:
    run_id = new_run(client)
    changed = {"rl": {"max_steps": 9, "kl_beta": 0.0}, "fresh": 1}
    reopen(client, run_id, params=changed, config_text="rl:\n  max_steps: 9\n")
    run = client.get_run(run_id)
    assert run.data.params["rl.max_steps"] == "2"
    assert run.data.params["fresh"] == "1"
    difference = run.data.tags["config_diff"].splitlines()
    assert difference[0] == "algorithm: grpo -> (absent)"
    assert difference[1].startswith("config_digest: ")
    assert difference[2:] == ["rl.max_steps: 2 -> 9"]


def test_a_changed_configuration_is_kept_beside_the_first(client: MlflowClient) -> None:
    run_id = new_run(client)
    reopen(client, run_id, config_text="other: 1\n")
    digest = hashlib.sha256(b"other: 1\n").hexdigest()[:12]
    assert artifact(client, run_id, "config.yaml") == CONFIG
    assert artifact(client, run_id, f"config-{digest}.yaml") == "other: 1\n"


def test_going_back_to_the_first_configuration_clears_the_difference(client: MlflowClient) -> None:
    run_id = new_run(client)
    reopen(client, run_id, config_text="other: 1\n")
    reopen(client, run_id)
    assert client.get_run(run_id).data.tags["config_diff"] == ""


def test_a_difference_too_long_for_a_tag_is_cut(client: MlflowClient) -> None:
    run_id = new_run(client, params={f"p{number}": "x" * 400 for number in range(20)})
    reopen(client, run_id, params={f"p{number}": "y" * 400 for number in range(20)})
    assert len(client.get_run(run_id).data.tags["config_diff"]) == 5000


def test_a_run_of_another_store_is_refused_with_the_remedy(client: MlflowClient) -> None:
    with pytest.raises(LookupError, match=r"no run 0123.*rl.resume=off"):
        reopen(client, "0123456789abcdef0123456789abcdef")


def test_a_deleted_experiment_is_refused_with_the_remedy(client: MlflowClient) -> None:
    identifier = client.create_experiment("gone")
    client.delete_experiment(identifier)
    with pytest.raises(ValueError, match=r"was deleted.*tracking.experiment"):
        create_run(client, experiment="gone", run_name="r", params={}, tags={}, config_text="")


def test_a_run_whose_start_fails_does_not_stay_running(client: MlflowClient) -> None:
    experiment = client.create_experiment("unwritable", artifact_location="/proc/nowhere")
    with pytest.raises(OSError, match="nowhere"):
        create_run(
            client, experiment="unwritable", run_name="r", params={}, tags={}, config_text=""
        )
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FAILED"
