"""Who may import whom, as data; every file is read, so an import inside a function counts too."""

import ast
import importlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from flytekit.core.base_task import PythonTask
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.models.types import LiteralType
from pydantic import BaseModel

ROOT = Path(__file__).parents[1]
OURS = ("configs", "images", "objectives", "tasks", "workflows", "tests", "examples")
HEAVY = ("torch", "vllm", "transformers", "mlflow", "accelerate")


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What a folder may import.

    Attributes:
        ours: modules of this project, with all below them; itself included.
        theirs: third-party packages.
        except_in: packages that one file of the folder, and no other, may import as well.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    except_in: tuple[tuple[str, str], ...] = ()


TABLES = ("numpy", "pyarrow")
MODELS = ("numpy", "safetensors", "tokenizers", "torch", "transformers")

LAYERS = {
    "objectives/primitives": Layer(ours=("objectives.primitives",), theirs=("torch",)),
    "objectives": Layer(ours=("objectives", "configs"), theirs=("torch",)),
    "configs": Layer(ours=("configs",), theirs=("pydantic", "pydantic_core", "omegaconf", "yaml")),
    "images": Layer(
        ours=("images", "configs"),
        theirs=("flytekit",),
        except_in=(("nodes.py", "flyteidl"), ("nodes.py", "google")),
    ),
    "tasks/data": Layer(
        ours=("tasks.data", "configs"),
        theirs=(*TABLES, "fsspec"),
        except_in=(("arrow.py", "flytekit"),),
    ),
    "tasks/processes": Layer(ours=("tasks.processes",), theirs=()),
    "tasks/rewards": Layer(
        ours=("tasks.rewards", "tasks.data", "tasks.processes", "configs"),
        theirs=TABLES,
        except_in=(("expressions.py", "math_verify"),),
    ),
    "tasks/annotators": Layer(ours=("tasks.annotators", "tasks.data", "configs"), theirs=TABLES),
    "tasks/policy": Layer(
        ours=("tasks.policy", "tasks.data", "configs"),
        theirs=(*MODELS, "huggingface_hub", "jinja2", "peft"),
    ),
    "tasks/sampling": Layer(
        ours=("tasks.sampling", "tasks.policy", "tasks.data", "configs"),
        theirs=(*MODELS, "pyarrow", "vllm"),
    ),
    "tasks/trainer": Layer(
        ours=(
            "tasks.trainer",
            "tasks.policy",
            "tasks.data",
            "tasks.processes",
            "objectives",
            "configs",
        ),
        theirs=(*MODELS, "pyarrow", "accelerate"),
    ),
    "tasks/tracking": Layer(
        ours=("tasks.tracking", "configs"),
        theirs=(*TABLES, "pandas", "mlflow", "sqlalchemy", "alembic"),
    ),
    "tasks/evaluation": Layer(
        ours=(
            "tasks.evaluation",
            "tasks.annotators",
            "tasks.data",
            "tasks.policy",
            "tasks.rewards",
            "tasks.sampling",
            "configs",
        ),
        theirs=TABLES,
    ),
    "tasks/run": Layer(
        ours=(
            "tasks.run",
            "tasks.data",
            "tasks.evaluation",
            "tasks.policy",
            "tasks.tracking",
            "objectives.objective",
            "configs",
        ),
        theirs=("mlflow", "pyarrow"),
    ),
    "tasks": Layer(
        ours=("tasks", "images", "configs", "objectives"),
        theirs=("flytekit", "pydantic"),
    ),
    "workflows": Layer(
        ours=(
            *(f"tasks.{path.stem}" for path in ROOT.glob("tasks/*.py")),
            "images",
            "configs",
            "workflows",
        ),
        theirs=("flytekit",),
        except_in=(("*", "tasks.data.arrow"),),
    ),
}
"""The most specific folder that a file lies in decides."""


def sources() -> list[Path]:
    folders = ("configs", "images", "objectives", "tasks", "workflows")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def layer_of(path: Path) -> tuple[str, Layer]:
    folder = path.relative_to(ROOT).parent
    while str(folder) not in LAYERS:
        folder = folder.parent
    return str(folder), LAYERS[str(folder)]


def imports(path: Path) -> set[str]:
    """Return the full names of the modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found |= {submodule(node.module or "", alias.name) for alias in node.names}
    return {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names}


def submodule(module: str, name: str) -> str:
    """Return `module.name` if that is a module of ours, else `module`.

    >>> submodule("tasks.policy", "checkpoints"), submodule("tasks.handle", "Run")
    ('tasks.policy.checkpoints', 'tasks.handle')
    """
    path = ROOT.joinpath(*module.split("."), name)
    is_ours = module.partition(".")[0] in OURS
    return (
        f"{module}.{name}"
        if is_ours and (path.is_dir() or path.with_suffix(".py").is_file())
        else module
    )


def within(name: str, allowed: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in allowed)


def forbidden(path: Path) -> list[str]:
    """Return the imports of a file that its layer does not have."""
    _, layer = layer_of(path)
    extra = tuple(what for where, what in layer.except_in if where in {"*", path.name})
    return sorted(
        name for name in imports(path) if not within(name, (*layer.ours, *layer.theirs, *extra))
    )


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_what_its_layer_has(path: Path) -> None:
    assert forbidden(path) == []


def test_every_folder_of_tasks_has_a_row() -> None:
    folders = {
        f"tasks/{path.name}"
        for path in (ROOT / "tasks").iterdir()
        if (path / "__init__.py").exists()
    }
    assert folders == {row for row in LAYERS if row.startswith("tasks/")}


@pytest.mark.parametrize("path", sorted(ROOT.glob("tasks/*.py")), ids=lambda path: path.stem)
def test_a_task_imports_heavy_libraries_inside_its_body_only(path: Path) -> None:
    tree = ast.parse(path.read_text())
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in top
    }
    assert not {name for name in names if name and name.partition(".")[0] in HEAVY}


def loaded(module: str) -> set[str]:
    """Return the heavy libraries that importing a module loads, in a process of its own."""
    script = f"import sys, {module}\nprint(*(n for n in {HEAVY!r} if n in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module", [f"workflows.{path.stem}" for path in sorted(ROOT.glob("workflows/[a-z]*.py"))]
)
def test_importing_a_workflow_loads_no_heavy_library(module: str) -> None:
    assert loaded(module) == set()


def test_every_task_can_be_imported_first_and_alone() -> None:
    script = "\n".join(
        [
            "import importlib, os, sys",
            "import flytekit",
            "for name in sys.argv[1:]:",
            "    child = os.fork()",
            "    if not child:",
            "        importlib.import_module(name)",
            f"        os._exit(any(heavy in sys.modules for heavy in {HEAVY!r}))",
            "    status = os.waitpid(child, 0)[1]",
            "    assert status == 0, name",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *task_modules()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def task_modules() -> list[str]:
    return [f"tasks.{path.stem}" for path in sorted(ROOT.glob("tasks/[a-z]*.py"))]


def all_tasks() -> dict[str, PythonTask]:
    found = {}
    for name in (
        *task_modules(),
        *(f"workflows.{p.stem}" for p in ROOT.glob("workflows/[a-z]*.py")),
    ):
        for value in vars(importlib.import_module(name)).values():
            if isinstance(value, PythonFunctionTask):
                found[value.name] = value
    return found


def is_plain(kind: LiteralType) -> bool:
    """Return whether every part of a type is one that another process reads without pickle."""
    if kind.collection_type is not None:
        return is_plain(kind.collection_type)
    if kind.map_value_type is not None:
        return is_plain(kind.map_value_type)
    if kind.union_type is not None:
        return all(is_plain(variant) for variant in kind.union_type.variants)
    return kind.simple is not None or kind.structured_dataset_type is not None


@pytest.mark.parametrize("name", sorted(all_tasks()))
def test_a_task_speaks_in_tables_numbers_text_and_models(name: str) -> None:
    interface = all_tasks()[name].interface
    for variable in (*interface.inputs.values(), *interface.outputs.values()):
        assert is_plain(variable.type), variable.type


@pytest.mark.parametrize("name", sorted(all_tasks()))
def test_a_task_has_a_sentence_for_people(name: str) -> None:
    task = all_tasks()[name]
    first = (task._task_function.__doc__ or "").strip().splitlines()[0]
    assert first.endswith("."), f"{name}: {first!r}"


def test_every_model_that_tasks_pass_refuses_unknown_fields() -> None:
    kinds = {
        kind
        for task in all_tasks().values()
        for kind in task.python_interface.inputs.values()
        if isinstance(kind, type) and issubclass(kind, BaseModel)
    }
    assert kinds
    assert all(kind.model_config.get("extra") == "forbid" for kind in kinds)
