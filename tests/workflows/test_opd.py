"""What a run of the OPD workflow leaves behind; two symbols whose divergences are known by hand."""

import json
import math
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from mlflow import MlflowClient
from transformers import LlamaForCausalLM

from configs.model import EmbeddedModel
from tasks.data.arithmetic import VOCABULARY
from tasks.data.arrow import read_table
from tasks.policy.embedded import build_model, build_tokenizer
from tests.workflows.runs import ROOT, TINY, Finished, Warm

KL_KEYS = {"first_teacher_kl", "last_teacher_kl"}
REVERSE, FORWARD = 0.368064, 0.510826
IMPOSSIBLE = -20.0

SMALL = {
    **TINY,
    "teacher.source": "embedded",
    **{
        f"teacher.embedded.{name}": TINY[f"model.embedded.{name}"]
        for name in ("hidden_size", "num_layers", "num_heads", "intermediate_size")
    },
    "teacher.embedded.initializer_range": 0.3,
    "teacher.embedded.warm_start_max_steps": 0,
}
"""A student and a teacher that know nothing, and differ."""

SHAPE = EmbeddedModel(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16)


def opd(warm: Warm, root: Path, settings: dict[str, object], *, recipe: str) -> Finished:
    words = {"job.output_root": root, "tracking.uri": warm.store, **settings}
    overrides = " ".join(f"{key}={value}" for key, value in words.items())
    flow = str(ROOT / "workflows" / "opd.py")
    command = ["pyflyte", "run", flow, "opd", "--recipe", recipe, "--overrides", overrides]
    code, output = warm.run(command, log=root / "log")
    return Finished(code, output, root / str(settings["job.name"]))


def model_saying(
    to: Path, probabilities: dict[str, float], *, padding: dict[int, float] | None = None
) -> str:
    """Write a model that draws every token from the same distribution, whatever came before."""
    model = build_model(SHAPE, seed=0)
    width = len(VOCABULARY) + (max(padding) + 1 if padding else 0)
    config = model.config
    config.vocab_size, config.tie_word_embeddings = width, False
    model = LlamaForCausalLM(config)
    model.generation_config = build_model(SHAPE, seed=0).generation_config
    logits = torch.full((width,), IMPOSSIBLE)
    for symbol, probability in probabilities.items():
        logits[VOCABULARY.index(symbol)] = math.log(probability)
    for row, logit in (padding or {}).items():
        logits[len(VOCABULARY) + row] = logit
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.fill_(1.0)
        model.lm_head.weight.copy_(logits[:, None].expand(-1, 16) / 16)
    model.save_pretrained(to)
    build_tokenizer().save_pretrained(to)
    return str(to)


@pytest.fixture(scope="module")
def symbols(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("symbols")
    return {
        "student": model_saying(root / "student", {"0": 0.9, "1": 0.1}),
        "teacher": model_saying(root / "teacher", {"0": 0.5, "1": 0.5}),
        "padded": model_saying(
            root / "padded", {"0": 0.5, "1": 0.5}, padding={0: 2.0, 1: -1.0, 5: 1.0}
        ),
    }


def two_symbols(symbols: dict[str, str], teacher: str = "teacher", **rl: object) -> dict:
    return {
        "job.name": "symbols",
        "model.source": "pretrained",
        "model.name_or_path": symbols["student"],
        "teacher.source": "pretrained",
        "teacher.name_or_path": symbols[teacher],
        "evaluation.num_prompts": 8,
        "rollout.prompts_per_step": 16,
        "rollout.group_size": 4,
        "rl.max_steps": 1,
        "rl.mini_batches": 1,
        **{f"rl.{name}": value for name, value in rl.items()},
    }


def metrics(warm: Warm, run: Finished) -> dict[str, float]:
    assert run.code == 0, run.output[-3000:]
    client = MlflowClient(tracking_uri=warm.store)
    return client.get_run(str(run.summary["mlflow_run_id"])).data.metrics


def table(run: Finished, step: int = 0) -> pa.Table:
    return read_table(run.directory / "tables" / f"step-{step:06d}.arrow")


@pytest.mark.parametrize(
    ("kind", "topk", "teacher"),
    [
        ("reverse_kl", 0, "teacher"),
        ("forward_kl", 0, "padded"),
        ("forward_kl", 2, "teacher"),
        ("reverse_kl", 2, "padded"),
    ],
)
def test_two_symbols_have_the_divergence_by_hand(
    warm: Warm, symbols: dict[str, str], tmp_path: Path, kind: str, topk: int, teacher: str
) -> None:
    settings = two_symbols(symbols, teacher, divergence=kind, teacher_topk=topk)
    run = opd(warm, tmp_path, settings, recipe="opd_direct_arithmetic")
    found = metrics(warm, run)
    expected = {"reverse_kl": REVERSE, "forward_kl": FORWARD}[kind]
    assert found["train/teacher/divergence"] == pytest.approx(expected, abs=2e-6)
    assert found["train/loss"] == pytest.approx(expected, abs=2e-6)
    assert run.summary["first_teacher_kl"] == pytest.approx(REVERSE, abs=2e-6)


@pytest.mark.parametrize("teacher", ["teacher", "padded"])
def test_two_symbols_are_scored_one_by_one(
    warm: Warm, symbols: dict[str, str], tmp_path: Path, teacher: str
) -> None:
    settings = two_symbols(symbols, teacher, kl_advantage_bound=0)
    run = opd(warm, tmp_path, settings, recipe="opd_arithmetic")
    rows = table(run)
    tokens = [t for row in rows["response_tokens"].to_pylist() for t in row]
    scores = [s for row in rows["teacher_logprobs"].to_pylist() for s in row]
    assert set(tokens) == {VOCABULARY.index("0"), VOCABULARY.index("1")}
    assert scores == pytest.approx([math.log(0.5)] * len(tokens), abs=1e-5)
    share = tokens.count(VOCABULARY.index("0")) / len(tokens)
    by_hand = share * math.log(0.9 / 0.5) + (1 - share) * math.log(0.1 / 0.5)
    assert metrics(warm, run)["train/teacher/kl"] == pytest.approx(by_hand, abs=1e-5)
    assert metrics(warm, run)["train/loss"] == pytest.approx(by_hand, abs=1e-5)


@pytest.mark.parametrize(
    ("recipe", "more", "scored"),
    [
        ("opd_arithmetic", {}, True),
        ("opd_arithmetic", {"rl.kl_beta": 0.1, "rl.task_advantage_weight": 0.5}, True),
        ("opd_direct_arithmetic", {}, False),
        ("opd_direct_arithmetic", {"rl.teacher_topk": 3, "rl.divergence": "jsd"}, True),
    ],
)
def test_a_run_leaves_what_a_grpo_run_leaves_and_the_distance_to_the_teacher(
    warm: Warm, tmp_path: Path, recipe: str, more: dict[str, object], scored: bool
) -> None:
    run = opd(warm, tmp_path, {**SMALL, **more}, recipe=recipe)
    summary = run.summary
    assert summary.keys() >= KL_KEYS | {"first_accuracy", "last_reward", "weights_digest"}
    assert summary["steps"] == 3
    assert all(summary[key] > 0 for key in KL_KEYS)
    assert ("teacher" in json.loads(json.dumps(summary["seconds"]))) == scored
    assert ("teacher_logprobs" in table(run).column_names) == scored
    assert run.checkpoints[-1] == 3
    digests = {table(run, step)["policy_digest"][0].as_py() for step in range(3)}
    assert len(digests | {run.weights}) == 4


def test_direct_mode_says_that_rewards_do_not_train(warm: Warm, tmp_path: Path) -> None:
    settings = {**SMALL, "rl.max_steps": 1}
    run = opd(warm, tmp_path, settings, recipe="opd_direct_arithmetic")
    assert (
        "warning: rl.distillation_mode='direct': task reward and group advantage do not train"
        in (run.output)
    )


def test_another_tokenizer_is_refused_before_the_first_step_by_both_names(
    warm: Warm, symbols: dict[str, str], tmp_path: Path
) -> None:
    other = model_saying(tmp_path / "other", {"0": 1.0})
    path = Path(other) / "tokenizer.json"
    stored = json.loads(path.read_text())
    ids = stored["model"]["vocab"]
    ids["0"], ids["1"] = ids["1"], ids["0"]
    path.write_text(json.dumps(stored))
    settings = two_symbols({**symbols, "teacher": other})
    refused = opd(warm, tmp_path / "run", settings, recipe="opd_arithmetic")
    assert refused.code != 0
    assert "do not share a map from tokens to ids" in refused.output
    assert other in refused.output
    assert symbols["student"] in refused.output
    assert "step 1/1" not in refused.output
    assert not (refused.directory / "tables").exists()


def test_the_workflow_without_a_teacher_and_grpo_with_one_are_refused(
    warm: Warm, tmp_path: Path
) -> None:
    without = opd(warm, tmp_path, TINY, recipe="grpo_arithmetic")
    assert without.code != 0
    assert "the workflow opd needs a teacher" in without.output
    builder = {"rl__builder": "objectives.opd:build_objective"}
    grpo = warm.grpo(tmp_path / "grpo", teacher__source="embedded", **builder)
    assert grpo.code != 0
    assert "run workflows/opd.py" in grpo.output


def test_each_prompt_source_asks_its_own_teacher(
    warm: Warm, symbols: dict[str, str], tmp_path: Path
) -> None:
    recipe = tmp_path / "routed.yaml"
    sure = model_saying(tmp_path / "sure", {"0": 0.75, "1": 0.25})
    text = "base: opd_arithmetic\nteacher: {by_source: {%s: %s}}\n"
    recipe.write_text(text % ("arithmetic", sure))
    run = opd(warm, tmp_path / "run", two_symbols(symbols), recipe=str(recipe))
    assert run.code == 0, run.output[-3000:]
    scores = {round(s, 4) for row in table(run)["teacher_logprobs"].to_pylist() for s in row}
    assert scores == {round(math.log(0.75), 4), round(math.log(0.25), 4)}
    recipe.write_text(text % ("gsm8k", sure))
    refused = opd(warm, tmp_path / "other", two_symbols(symbols), recipe=str(recipe))
    assert refused.code != 0
    assert "teacher.by_source names the prompt sources ['gsm8k']" in refused.output
