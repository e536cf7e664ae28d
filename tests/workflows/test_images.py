"""The image of a node follows the engines of the run, in the graph that a cluster would get."""

import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from flyteidl.admin import task_pb2
from flytekit import FlyteContextManager, ImageSpec
from flytekit.configuration import Image, ImageConfig, SerializationSettings
from flytekit.core.context_manager import ExecutionState
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.types.directory import FlyteDirectory
from flytekit.types.structured import StructuredDataset

from configs.resolve import resolve
from images.roles import LIGHT, ROLLOUT, TEACHER, TRAIN, pinned
from tasks.data.arrow import FILE_NAME, write_table
from tasks.handle import Policy, Run
from tests.data.tables import prompts
from tests.workflows.runs import ROOT
from workflows.grpo import grpo_step, loop
from workflows.opd import opd_step

FLOWS = {"grpo_step": grpo_step, "loop": loop, "opd_step": opd_step}
SERVER = "rollout.engine=server rollout.server.url=http://here:1 rollout.batch_size=1024"
IMAGES = {role.name: role for role in (LIGHT, ROLLOUT, TEACHER, TRAIN)}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """flytekit keeps the graph of a dynamic task's first expansion."""
    yield
    for flow in FLOWS.values():
        flow._wf = None


def run(root: Path) -> Run:
    text = dict.fromkeys(("mlflow_run_id", "checkpoint", "identity", "lineage"), "")
    numbers = dict.fromkeys(("opened_at", "elapsed_before_s", "setup_s"), 0.0)
    return Run(directory=str(root), start_step=0, **text, **numbers)


def policy(root: Path) -> Policy:
    directory = FlyteDirectory(str(root), remote_directory=False)
    text = dict.fromkeys(("digest", "state_digest", "identity"), "")
    return Policy(version=0, step=0, weights=directory, trainer_state=directory, **text)


def images(flow: PythonFunctionTask, **inputs: object) -> dict[str, str]:
    """Return the image of every task that a dynamic workflow expands to, by the task's name."""
    settings = SerializationSettings(
        image_config=ImageConfig(default_image=Image("default", "local", "none")),
        project="local",
        domain="local",
        version="v",
    )
    context = FlyteContextManager.current_context().with_serialization_settings(settings)
    state = context.new_execution_state().with_params(mode=ExecutionState.Mode.TASK_EXECUTION)
    flow._wf = None  # compiled once per process otherwise, with the inputs of that time
    with FlyteContextManager.with_context(context.with_execution_state(state)) as now:
        spec = flow.compile_into_workflow(now, flow._task_function, **inputs)
    return {template.id.name: template.container.image for template in spec.tasks}


def expanded(name: str, root: Path, overrides: str) -> dict[str, str]:
    write_table(root / FILE_NAME, prompts())
    recipe = "opd_arithmetic" if name == "opd_step" else "grpo_arithmetic"
    config, table = resolve(recipe, overrides), StructuredDataset(uri=str(root))
    shared = {"config": config, "run": run(root), "pool": table, "held_out": table}
    own = {"first": policy(root)}
    if name != "loop":
        own = {"step": 0, "policy": policy(root), "auxiliary": {"teacher": policy(root)}}
    return images(FLOWS[name], **shared, **own)


def of(image: str) -> ImageSpec:
    """Return the role that the address of an image is built from."""
    return IMAGES[image.partition(":")[0]]


@pytest.mark.parametrize(
    ("overrides", "suffix", "image"),
    [
        ("rollout.engine=transformers", "", TRAIN),
        (SERVER, "", TRAIN),
        ("rollout.engine=vllm", "vllm_", ROLLOUT),
    ],
)
def test_rollout_and_evaluation_run_where_their_engine_is(
    tmp_path: Path, overrides: str, suffix: str, image: ImageSpec
) -> None:
    step = expanded("grpo_step", tmp_path, overrides)
    rollouts = {name: of(found) for name, found in step.items() if "rollout" in name}
    assert rollouts == {f"tasks.rollout.{suffix}rollout": image}
    evaluations = {name: of(found) for name, found in step.items() if "evaluate" in name}
    assert evaluations == {f"tasks.evaluate.{suffix}evaluate": image}
    assert of(step["tasks.train_chunks.train_chunks"]) == TRAIN
    assert of(step["tasks.score.score"]) == LIGHT
    last = expanded("loop", tmp_path, overrides)
    assert of(last[f"tasks.evaluate.{suffix}evaluate"]) == image


@pytest.mark.parametrize(
    ("engine", "task", "image"),
    [("transformers", "teacher_score", TEACHER), ("vllm", "vllm_teacher_score", ROLLOUT)],
)
def test_a_teacher_scores_where_its_engine_is(
    tmp_path: Path, engine: str, task: str, image: ImageSpec
) -> None:
    step = expanded("opd_step", tmp_path, f"teacher.engine={engine}")
    teachers = {name: of(found) for name, found in step.items() if "teacher" in name}
    assert teachers == {f"tasks.teacher_score.{task}": image}
    assert of(step["tasks.rollout.rollout"]) == TRAIN


def packaged(root: Path) -> dict[str, str]:
    """Package all workflows, with neither cluster nor Docker; return every task's image."""
    argv = [Path(sys.executable).with_name("pyflyte"), "--pkgs", "workflows", "package"]
    argv += ["--image", "local/none:v", "--source", ".", "--output", root / "package.tgz"]
    subprocess.run(argv, cwd=ROOT, check=True, timeout=120, stdout=subprocess.DEVNULL)
    found = {}
    with tarfile.open(root / "package.tgz") as package:
        for member in package:
            if member.name.endswith("_1.pb"):  # a task; workflows and launch plans end otherwise
                spec = task_pb2.TaskSpec.FromString(package.extractfile(member).read())
                found[spec.template.id.name] = spec.template.container.image
    return found


def test_a_package_holds_every_task_under_its_image(tmp_path: Path) -> None:
    found = {name: of(image) for name, image in packaged(tmp_path).items()}
    assert {name for name, role in found.items() if role == ROLLOUT} == {
        "tasks.rollout.vllm_rollout",
        "tasks.rollout_shards.vllm_rollout_shard",
        "tasks.evaluate.vllm_evaluate",
        "tasks.sample_held_out.vllm_sample_held_out",
        "tasks.teacher_score.vllm_teacher_score",
    }
    assert found["tasks.rollout.rollout"] == found["tasks.train_chunks.train_chunks"] == TRAIN
    assert found["tasks.teacher_score.teacher_score"] == TEACHER
    assert found["tasks.sample_held_out.sample_held_out"] == TRAIN
    assert found["workflows.grpo.grpo_step"] == found["tasks.score.score"] == LIGHT


def test_an_image_has_one_version_of_a_package_and_only_the_engines_has_vllm() -> None:
    for name, role in IMAGES.items():
        packages = [requirement.split("==")[0] for requirement in role.packages]
        assert len(packages) == len(set(packages))
        assert ("vllm" in packages) == (name == ROLLOUT.name)
        assert all("==" in requirement for requirement in role.packages)


def test_a_package_without_a_pin_is_refused() -> None:
    with pytest.raises(KeyError, match="no-such-package"):
        pinned("no-such-package")
