"""Evaluation of any policy on a recipe's held-out prompts."""

from flytekit import dynamic, workflow

from configs.run import RunConfig
from images.resources import requests
from images.roles import LIGHT
from tasks.data.arrow import TableReference
from tasks.handle import Policy
from tasks.open_checkpoint import open_checkpoint
from tasks.prepare_prompts import prepare_prompts
from tasks.report_evaluation import report_evaluation
from tasks.resolve_config import resolve_config
from tasks.sample_held_out import sample_held_out, vllm_sample_held_out
from tasks.score_held_out import score_held_out
from workflows.engines import by_engine


@dynamic(container_image=LIGHT)
def answer_and_judge(
    config: RunConfig, policy: Policy, origin: str, files_digest: str, held_out: TableReference
) -> str:
    """Sample responses to held-out prompts, judge them, and keep what they come to."""
    light = requests(config.resources.light)
    sample = by_engine(config.rollout.engine, vllm=vllm_sample_held_out, other=sample_held_out)
    rollouts = sample(
        model=config.model,
        rollout=config.rollout,
        evaluation=config.evaluation,
        seed=config.job.seed,
        policy=policy,
        files_digest=files_digest,
        held_out=held_out,
    ).with_overrides(**requests(config.resources.rollout))
    judged = score_held_out(config=config, rollouts=rollouts).with_overrides(**light)
    return report_evaluation(
        config=config, policy=policy, origin=origin, judged=judged
    ).with_overrides(**light)


@workflow
def evaluate_policy(
    recipe: str = "grpo_arithmetic", overrides: str = "", checkpoint: str = ""
) -> str:
    """Evaluate a policy on held-out prompts; return the directory of tables and result.

    Args:
        recipe: Path of a YAML recipe, or a name under configs/recipes.
        overrides: Settings such as "evaluation.num_samples=8 evaluation.temperature=0.8".
        checkpoint: A run, a checkpoint, a Hugging Face directory, a hub name, or "initial".
    """
    config = resolve_config(recipe=recipe, overrides=overrides, workflow="evaluate")
    found = open_checkpoint(config=config, checkpoint=checkpoint)
    prompts = prepare_prompts(
        data=config.data,
        policy=found.policy,
        max_prompt_tokens=config.rollout.max_prompt_tokens,
    )
    return answer_and_judge(
        config=config,
        policy=found.policy,
        origin=found.origin,
        files_digest=found.files_digest,
        held_out=prompts.held_out,
    )
