"""What a run must share with a checkpoint that it continues from."""

from collections.abc import Mapping

from configs.plan import AnyConfig, flatten

KEPT = (
    "job.seed",
    "model.",
    "teacher.",
    "data.",
    "rollout.prompts_per_step",
    "rollout.group_size",
    "rollout.staleness",
    "denoiser.",
    "dpo.pairs_per_step",
)
"""Settings that decide which rows a step trains on, or what they are trained from."""


def lineage(
    config: AnyConfig, identity: Mapping[str, object], fingerprint: str
) -> dict[str, object]:
    """Return flat JSON values; a resumed run must have every one of them.

    Args:
        config: the run's.
        identity: of its objective.
        fingerprint: of its prompts or pairs, as its tokenizer writes them.
    """
    objective = {f"objective.{key}": value for key, value in identity.items()}
    kept = {key: value for key, value in flatten(config).items() if key.startswith(KEPT)}
    return {**objective, **kept, "data fingerprint": fingerprint}
