"""Every way to name a policy, and what is said when nothing is there."""

import shutil
from pathlib import Path

import huggingface_hub
import pytest

from configs.run import RunConfig
from tasks.policy import checkpoints
from tasks.policy.named import find_policy
from tests.policy.builders import open_policy, run_config


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return run_config(tmp_path)


@pytest.fixture
def run(config: RunConfig) -> Path:
    """Return the directory of a run with checkpoints before steps 1 and 2."""
    root = Path(config.directory) / "checkpoints"
    for step in (1, 2):
        checkpoints.publish(root, open_policy(config), step=step, lineage={}, mlflow_run_id="")
    (root.parent / "config.json").write_text("{}")
    return root.parent


def test_a_checkpoint_is_named_by_its_directory_or_its_weights(
    config: RunConfig, run: Path
) -> None:
    path = run / "checkpoints" / "step-000001"
    for name in (path, path / "weights"):
        found = find_policy(str(name), config)
        assert (found.step, found.origin) == (1, str(path))
        assert found.files == checkpoints.read(path).policy


@pytest.mark.parametrize("name", ["", ".", "checkpoints"])
def test_a_run_is_named_by_its_directory_and_gives_its_newest_checkpoint(
    config: RunConfig, run: Path, name: str
) -> None:
    found = find_policy(str(run / name) if name else "", config)
    assert (found.step, found.origin) == (2, str(run / "checkpoints" / "step-000002"))


def test_the_initial_policy_is_that_of_the_recipe(config: RunConfig) -> None:
    found = find_policy("initial", config)
    assert found.files == open_policy(config)
    assert (found.step, found.origin) == (0, "initial")


def test_a_relative_path_is_taken_from_the_current_directory(
    config: RunConfig, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run / "checkpoints")
    assert find_policy("step-000001", config).origin == str(run / "checkpoints" / "step-000001")


def test_any_hugging_face_directory_has_the_digest_of_its_weights(
    config: RunConfig, tmp_path: Path
) -> None:
    policy = open_policy(config)
    shutil.copytree(policy.weights, tmp_path / "elsewhere")
    found = find_policy(str(tmp_path / "elsewhere"), config)
    assert found.files.digest == policy.digest
    assert found.files.weights == tmp_path / "elsewhere"
    assert (found.step, found.origin) == (0, str(tmp_path / "elsewhere"))


def test_an_altered_checkpoint_is_refused_and_an_older_one_not_taken_for_it(
    config: RunConfig, run: Path
) -> None:
    path = run / "checkpoints" / "step-000002"
    with (path / "weights" / "model.safetensors").open("ab") as file:
        file.write(b"x")
    for name in (path, path / "weights"):
        with pytest.raises(ValueError, match=r"step-000002'.*were altered"):
            find_policy(str(name), config)
    assert find_policy(str(run), config).step == 1


def test_a_run_without_any_intact_checkpoint_is_refused(config: RunConfig, run: Path) -> None:
    for path in (run / "checkpoints").iterdir():
        (path / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"checkpoints'.*does not verify"):
        find_policy(str(run), config)


def test_a_run_that_was_never_trained_says_what_to_do(config: RunConfig) -> None:
    with pytest.raises(ValueError, match=r"no run in .*/tiny; train it first, or say which"):
        find_policy("", config)


@pytest.mark.parametrize(
    ("files", "lacking"),
    [([], "no config.json and no weights"), (["config.json"], "no weights"), (["a.bin"], "no con")],
)
def test_a_directory_that_holds_no_model_is_refused_saying_what_it_lacks(
    config: RunConfig, tmp_path: Path, files: list[str], lacking: str
) -> None:
    (tmp_path / "empty").mkdir()
    for name in files:
        (tmp_path / "empty" / name).touch()
    with pytest.raises(ValueError, match=lacking) as raised:
        find_policy(str(tmp_path / "empty"), config)
    assert str(tmp_path / "empty") in str(raised.value)


@pytest.mark.parametrize("name", ["/no/such/place", "runs/a/checkpoints/step-000001", "s3://b/c"])
def test_a_path_to_nothing_is_no_hub_name(config: RunConfig, name: str) -> None:
    with pytest.raises(ValueError, match=f"checkpoint='{name}': no such directory; expected 'init"):
        find_policy(name, config)


def test_a_hub_name_is_fetched_at_its_revision(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, asked = open_policy(config), []

    def fetched(name: str, revision: str | None) -> str:
        asked.append((name, revision))
        return str(policy.weights)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    for name in ("owner/name@v1.0", "name"):
        found = find_policy(name, config)
        assert (found.origin, found.files.digest) == (name, policy.digest)
    assert asked == [("owner/name", "v1.0"), ("name", None)]


def test_a_model_that_the_hub_does_not_give_is_refused_with_the_reason(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=r"'no/such-model': no such directory here, and not to be"):
        find_policy("no/such-model", config)
