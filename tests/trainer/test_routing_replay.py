"""Training with the experts that the sampler chose."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from objectives.batch import TrajectoryBatch
from tasks.annotators.annotate import annotate
from tasks.data.schemas import ROUTED_EXPERTS
from tasks.policy import resident
from tasks.policy.directory import weights_digest
from tasks.policy.files import PolicyFiles
from tasks.policy.routing import routers_of
from tasks.rewards.score import score
from tasks.sampling.rollout import evaluation_rollout, rollout
from tasks.sampling.shards import join, shard_of, timed
from tasks.trainer.loop import train
from tasks.trainer.policy import PolicyModel
from tasks.trainer.recomputing import recompute_layers
from tasks.trainer.reference import FrozenReference
from tasks.trainer.rows import Rows
from tests.policy.adapters import qwen
from tests.policy.builders import open_policy, problems, run_config
from tests.policy.experts import FAMILIES, NUM_EXPERTS, qwen3_moe
from tests.sampling.builders import params, sampler
from tests.trainer.builders import adapter, batch_of, make_rows, reference
from tests.trainer.loop_runs import KINDS, place

REPLAYED = {"routing_replay": True, "max_prompt_tokens": 8}
PROMPTS = [[3, 4, 5], [6, 7, 8, 9, 10]]


@pytest.fixture(autouse=True)
def _nothing_live() -> None:
    for kind in KINDS:
        resident.drop(kind)


FAMILY = pytest.mark.parametrize("name", FAMILIES)


def sampled(model: PreTrainedModel, **changes: object) -> Rows:
    """Rows of four samples per prompt, with the experts that the sampler recorded."""
    engine = replace(sampler(model), recorded=routers_of(model))
    groups = engine.sample(PROMPTS, [0, 1], params(**changes))
    completions = [completion for group in groups for completion in group]
    rows = make_rows([(1, len(completion.tokens)) for completion in completions])
    return replace(
        rows,
        prompts=[np.array(p) for p, group in zip(PROMPTS, groups, strict=True) for _ in group],
        responses=[completion.tokens.astype(np.int64) for completion in completions],
        engine_logprobs=[completion.logprobs for completion in completions],
        routed_experts=[completion.experts for completion in completions],
    )


def reversed_experts(rows: Rows) -> Rows:
    """The same rows, every token sent to the experts that it was not sent to."""
    flipped = [(NUM_EXPERTS - 1 - experts).astype(np.int16) for experts in rows.routed_experts]
    return replace(rows, routed_experts=flipped)


def logprobs(model: PreTrainedModel, batch: TrajectoryBatch) -> torch.Tensor:
    return adapter(model).token_logprobs(batch, temperature=1.0).logprobs


@FAMILY
@pytest.mark.parametrize("batch_size", [64, 3])
def test_the_trainer_scores_what_was_sampled(name: str, batch_size: int) -> None:
    model = FAMILIES[name]()
    batch = batch_of(sampled(model, batch_size=batch_size))
    found = logprobs(model, batch)
    np.testing.assert_allclose(
        found.detach()[batch.response_mask.bool()],
        batch.engine_logprobs[batch.response_mask.bool()],
        atol=2e-5,
    )


@FAMILY
def test_recorded_experts_are_those_of_a_plain_forward_pass(name: str) -> None:
    model = FAMILIES[name]()
    rows = sampled(model)
    free = batch_of(replace(rows, routed_experts=None))
    torch.testing.assert_close(logprobs(model, batch_of(rows)), logprobs(model, free))


@FAMILY
def test_other_experts_give_other_scores_in_all_layouts_alike(name: str) -> None:
    model = FAMILIES[name]()
    rows = reversed_experts(sampled(model))
    batch = batch_of(rows)
    together = logprobs(model, batch)
    free = logprobs(model, batch.unrouted())
    assert (together - free).abs().max() > 1e-3
    policy = PolicyModel(model)
    policy.attention_scale = 0.0
    unpacked, _ = policy(batch)
    torch.testing.assert_close(together, unpacked, atol=1e-5, rtol=1e-4)
    for row in range(len(rows)):
        alone = logprobs(model, batch_of(rows, [row]))[0]
        torch.testing.assert_close(together[row, : alone.numel()], alone, atol=1e-5, rtol=1e-4)


def test_recomputed_layers_make_the_choices_of_the_first_pass() -> None:
    """Between the pass and its gradient another pass, without replay, takes place."""
    batch = batch_of(reversed_experts(sampled(qwen3_moe())))
    gradients = []
    for recompute in (False, True):
        model = qwen3_moe()
        if recompute:
            recompute_layers(model)
        total = logprobs(model, batch).sum()
        logprobs(model, batch.unrouted())
        total.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, expected in gradients[0].items():
        assert torch.equal(gradients[1][name], expected), name


def test_only_the_policy_replays() -> None:
    model = qwen3_moe()
    rows = reversed_experts(sampled(model))
    scorer = FrozenReference(adapter(model))
    found = scorer.reference_logprobs(batch_of(rows), temperature=1.0)
    expected, _ = reference(model, rows.prompts[0], rows.responses[0])
    torch.testing.assert_close(
        found[0, : len(expected)].double(), expected.detach(), atol=1e-5, rtol=0
    )


def test_rounding_of_the_sampler_moves_no_token_elsewhere() -> None:
    """The sampler in bfloat16, the trainer in float32, routers close to indifferent."""
    model = qwen3_moe()
    for layer in model.model.layers:
        layer.mlp.gate.weight.data *= 1e-3
    engine = qwen3_moe().to(torch.bfloat16)
    engine.load_state_dict(model.state_dict())
    rows = sampled(engine, max_tokens=24)
    batch = batch_of(rows)
    tokens = batch.response_mask.bool()

    def mismatch(of: TrajectoryBatch) -> torch.Tensor:
        return (logprobs(model, of) - of.engine_logprobs)[tokens].abs().max()

    assert mismatch(batch) < 0.3 * mismatch(batch.unrouted())


def test_a_dense_model_refuses_rows_with_experts() -> None:
    batch = batch_of(sampled(qwen3_moe()))
    with pytest.raises(ValueError, match="Qwen2ForCausalLM is no mixture of experts"):
        logprobs(qwen(), batch)


def moe_policy(root: Path) -> PolicyFiles:
    """The policy of a tiny run, with a mixture of experts in place of its model."""
    policy = open_policy(run_config(root))
    weights = root / "moe"
    shutil.copytree(policy.weights, weights)
    qwen3_moe().save_pretrained(weights)
    return replace(policy, weights=weights, digest=weights_digest(weights))


@pytest.mark.parametrize("shards", [1, 2])
def test_a_step_replays_what_its_rollout_recorded(tmp_path: Path, shards: int) -> None:
    config = run_config(tmp_path, rollout=REPLAYED)
    policy = moe_policy(tmp_path)
    prompts = problems(4)
    tables = [
        rollout(config, 0, shard_of(prompts, shard, shards), policy, first_prompt=4 * shard // 2)
        for shard in range(shards)
    ]
    table = join(prompts, [timed(t, 1.0) for t in tables], group_size=2)
    ready = annotate(score(table, config.reward), config.rl)
    assert ROUTED_EXPERTS in ready.column_names
    trained = train(config, ready, policy, place(tmp_path, "next"))
    assert trained.metrics["train/engine/mismatch_mean"] < 1e-4
    with pytest.raises(ValueError, match="no column 'routed_experts'"):
        train(config, ready.drop_columns([ROUTED_EXPERTS]), policy, place(tmp_path, "refused"))


def test_evaluation_records_no_experts(tmp_path: Path) -> None:
    config = run_config(tmp_path, rollout=REPLAYED)
    table = evaluation_rollout(config, problems(2), moe_policy(tmp_path))
    assert ROUTED_EXPERTS not in table.column_names


def test_a_dense_policy_is_refused_before_it_samples(tmp_path: Path) -> None:
    config = run_config(tmp_path, rollout=REPLAYED)
    with pytest.raises(ValueError, match="LlamaForCausalLM is no mixture of experts; remove it"):
        rollout(config, 0, problems(4), open_policy(config))
