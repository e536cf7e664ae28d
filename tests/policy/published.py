"""Made-up policies and their checkpoints."""

from pathlib import Path

from tasks.policy.checkpoints import Checkpoint, newest, paths, publish
from tasks.policy.files import PolicyFiles

LINEAGE = {"objective": "abc", "seed": 3, "nested": None}


def make_policy(root: Path, content: str = "one", *, version: int = 1) -> PolicyFiles:
    weights, state = root / content / "weights", root / content / "trainer_state"
    (weights / "sub").mkdir(parents=True)
    state.mkdir()
    (weights / "model.safetensors").write_text(f"{content} weights")
    (weights / "sub" / "extra.json").write_text("{}")
    (state / "optimizer.safetensors").write_text(f"{content} moments")
    return PolicyFiles(
        version=version,
        digest=f"{content}-digest",
        state_digest=f"{content}-state",
        weights=weights,
        trainer_state=state,
    )


def put(root: Path, policy: PolicyFiles, step: int) -> Checkpoint:
    return publish(root, policy, step=step, lineage=LINEAGE, mlflow_run_id="run-7")


def steps(root: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in paths(root)]


def newest_step(root: Path) -> int | None:
    found = newest(root)
    return None if found is None else found.step
