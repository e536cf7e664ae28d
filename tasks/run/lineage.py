"""What a run must share with a checkpoint that it continues from."""

from collections.abc import Mapping

from configs.plan import flatten
from configs.run import RunConfig
from tasks.data.sources import open_source

KEPT = ("job.seed", "model.", "data.", "rollout.prompts_per_step", "rollout.group_size")
"""Settings that decide which rows a step trains on, or what they are trained from."""


def lineage(config: RunConfig, identity: Mapping[str, object]) -> dict[str, object]:
    """Return flat JSON values; a resumed run must have every one of them.

    Args:
        config: the run's.
        identity: of its objective.
    """
    objective = {f"objective.{key}": value for key, value in identity.items()}
    kept = {key: value for key, value in flatten(config).items() if key.startswith(KEPT)}
    fingerprint = open_source(config.data).fingerprint()
    return {**objective, **kept, "data fingerprint": fingerprint}
