"""Accuracy on held-out prompts, apart from the reward that trains."""

import pyarrow as pa

from configs.run import RunConfig
from tasks.evaluation.judging import outcomes, score_held_out
from tasks.evaluation.measuring import measure
from tasks.policy.files import PolicyFiles
from tasks.sampling.rollout import evaluation_rollout


def evaluate(config: RunConfig, files: PolicyFiles, held_out: pa.Table) -> dict[str, float]:
    """Return held-out metrics of a policy by name; see `measure`.

    Raises:
        ValueError: as the two stages that it consists of.
    """
    judged = score_held_out(config, sample_held_out(config, files, held_out))
    ks = config.evaluation.ks
    return measure(outcomes(judged, ks), ks)


def sample_held_out(config: RunConfig, files: PolicyFiles, held_out: pa.Table) -> pa.Table:
    """Return the ROLLOUTS table of the first `evaluation.num_prompts` held-out prompts.

    Only the sections `model`, `rollout` and `evaluation` are read, and `job.seed`.

    Raises:
        ValueError: there are fewer held-out prompts than that.
    """
    if config.evaluation.num_prompts > len(held_out):
        raise ValueError(
            f"evaluation.num_prompts={config.evaluation.num_prompts} exceeds the {len(held_out)} "
            "usable held-out prompts; lower it"
        )
    return evaluation_rollout(config, held_out.slice(0, config.evaluation.num_prompts), files)
