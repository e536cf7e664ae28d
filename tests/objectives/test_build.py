import pickle
import sys
from pathlib import Path
from types import ModuleType

import pytest

from configs.rl import Rl
from objectives.build import ModelContext, build, load_builder
from objectives.objective import Objective

CONTEXT = ModelContext(name_or_path="toy", max_response_length=12)
SOURCE = """
from objectives.grpo import build_objective as grpo

def own(rl, model_context, *, scale=1.0, name="x"):
    own.seen = (scale, name)
    return grpo(rl, model_context)

def nothing(rl, model_context):
    return {"loss": 0}

def lonely(rl):
    return None

def make():
    def inner(rl, model_context):
        return None
    return inner

anonymous = lambda rl, model_context: None
nested = make()
number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "custom_objective_module.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("custom_objective_module", None)
    import custom_objective_module

    return custom_objective_module


def test_the_default_path_builds_an_objective() -> None:
    rl = Rl()
    objective = build(load_builder(rl.builder, rl.builder_arguments), rl, CONTEXT)
    assert isinstance(objective, Objective)


@pytest.mark.usefixtures("module")
def test_a_builder_outside_the_project_gets_its_arguments(module: ModuleType) -> None:
    builder = load_builder("custom_objective_module:own", {"scale": 0.5, "name": "y"})
    assert isinstance(build(builder, Rl(), CONTEXT), Objective)
    assert module.own.seen == (0.5, "y")
    assert pickle.loads(pickle.dumps(builder)).keywords == {"scale": 0.5, "name": "y"}


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("anonymous", "lambdas and nested functions"),
        ("nested", "lambdas and nested functions"),
        ("number", "expected a function"),
        ("absent", "has no 'absent'"),
        ("lonely", "cannot be called as"),
    ],
)
def test_what_cannot_be_a_builder_is_refused(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as error:
        load_builder(f"custom_objective_module:{name}")
    assert "rl.builder" in str(error.value)


@pytest.mark.parametrize(
    "path", ["objectives.grpo", "objectives/grpo:f", "a:b.c", "a:b:c", ":f", ""]
)
def test_a_malformed_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"rl\.builder is .*expected 'package.module:function'"):
        load_builder(path)


def test_an_unknown_module_is_named() -> None:
    with pytest.raises(ValueError, match=r"rl\.builder .*module 'no_such_module' cannot be found"):
        load_builder("no_such_module.sub:build")


@pytest.mark.usefixtures("module")
def test_arguments_must_be_primitive_and_known() -> None:
    with pytest.raises(ValueError, match=r"rl\.builder_arguments holds {'scale': \[1\]}"):
        load_builder("custom_objective_module:own", {"scale": [1]})
    with pytest.raises(ValueError, match=r"rl\.builder_arguments .*'typo'"):
        load_builder("custom_objective_module:own", {"typo": 1})
    with pytest.raises(ValueError, match=r"rl\.builder_arguments"):
        load_builder("custom_objective_module:own", {"rl": 1})


@pytest.mark.usefixtures("module")
def test_a_builder_must_return_an_objective_and_take_what_the_run_needs() -> None:
    with pytest.raises(ValueError, match=r"rl\.builder .* returned a dict"):
        build(load_builder("custom_objective_module:nothing"), Rl(), CONTEXT)
    with pytest.raises(ValueError, match=r"must take the keywords \['staleness'\]"):
        build(load_builder("custom_objective_module:own"), Rl(), CONTEXT, staleness=1)
    assert build(load_builder("objectives.grpo:build_objective"), Rl(), CONTEXT, staleness=1)
