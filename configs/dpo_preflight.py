"""Refuses settings of a run on preference pairs that contradict each other or are never read."""

from configs.dpo import DpoConfig
from configs.rules import SHARED, SHARED_WARNINGS, Rule, broken, refuse

SMOOTHED = ("sigmoid", "robust")
"""Kinds of the preference loss that read the label smoothing."""


def check_dpo(config: DpoConfig) -> None:
    """Raise `ValueError` with one line for each broken rule."""
    refuse(config, DPO_CONTRADICTIONS)


WORKFLOWS = {"dpo": "text", "dpo_diffusion": "points"}
"""What `dpo.pairs` must be in each workflow of `workflows/dpo.py`."""


def check_pairs(config: DpoConfig, workflow: str) -> None:
    """Refuse a recipe that is another workflow's.

    Raises:
        ValueError: naming the workflow that runs it.
    """
    if config.dpo.pairs != WORKFLOWS[workflow]:
        other = next(name for name, pairs in WORKFLOWS.items() if pairs == config.dpo.pairs)
        raise ValueError(
            f"dpo.pairs={config.dpo.pairs!r}: the workflow {workflow!r} trains on "
            f"{WORKFLOWS[workflow]}; run {other!r} of workflows/dpo.py"
        )


def dpo_warnings(config: DpoConfig) -> list[str]:
    """Return one line for each value that is honoured, but of little use."""
    return broken(config, SHARED_WARNINGS)


def _of_points(config: DpoConfig) -> bool:
    return config.dpo.pairs == "points"


def _of_sums(config: DpoConfig) -> bool:
    return config.dpo.pairs == "text" and config.data.source == "arithmetic"


def _num_held_out(config: DpoConfig) -> int:
    return config.denoiser.num_held_out if _of_points(config) else config.data.num_held_out


DPO_CONTRADICTIONS: tuple[Rule[DpoConfig], ...] = (
    *SHARED,
    Rule(
        field="dpo.pairs",
        broken=lambda c: _of_points(c) and bool(c.model.changed() | c.data.changed()),
        message="the sections `model` and `data` belong to language models and are never read; "
        "remove their settings, or set dpo.pairs=text",
    ),
    Rule(
        field="trainer.gradient_checkpointing",
        broken=lambda c: _of_points(c) and c.trainer.gradient_checkpointing,
        message="the denoiser has no layers that are recomputed; remove it",
    ),
    Rule(
        field="denoiser",
        broken=lambda c: not _of_points(c) and bool(c.denoiser.changed()),
        message="is read with dpo.pairs=points only; remove its settings",
    ),
    Rule(
        field="dpo.label_smoothing",
        broken=lambda c: c.dpo.kind not in SMOOTHED and c.dpo.label_smoothing != 0,
        message="is read by dpo.kind=sigmoid or robust only; remove it",
    ),
    Rule(
        field="dpo.kind",
        broken=lambda c: c.dpo.kind == "robust" and c.dpo.label_smoothing == 0,
        message="without dpo.label_smoothing is the same as sigmoid; set dpo.label_smoothing",
    ),
    Rule(
        field="dpo.kind",
        broken=lambda c: _of_points(c) and c.dpo.kind == "ipo",
        message="averages over tokens, which points have none of; use sigmoid, robust or hinge",
    ),
    Rule(
        field="dpo.sft_coef",
        broken=lambda c: _of_points(c) and c.dpo.sft_coef != 0,
        message="weighs a likelihood of tokens, which points have none of; remove it",
    ),
    Rule(
        field="dpo.mini_batches",
        broken=lambda c: c.dpo.pairs_per_step % c.dpo.mini_batches != 0,
        message="must divide dpo.pairs_per_step",
    ),
    Rule(
        field="trainer.num_processes",
        broken=lambda c: c.trainer.num_processes > c.dpo.pairs_per_step // c.dpo.mini_batches,
        message="exceeds the pairs of an optimizer step (dpo.pairs_per_step / dpo.mini_batches), "
        "so that some would train on nothing; lower it",
    ),
    Rule(
        field="data.chosen_field",
        broken=lambda c: c.data.source != "file" and "chosen_field" in c.data.changed(),
        message="is read by data.source=file only; remove it",
    ),
    Rule(
        field="data.rejected_field",
        broken=lambda c: c.data.source != "file" and "rejected_field" in c.data.changed(),
        message="is read by data.source=file only; remove it",
    ),
    Rule(
        field="data.max_tokens",
        broken=lambda c: _of_sums(c) and c.data.max_tokens < 3 * c.data.digits + 4,
        message="arithmetic pairs have 3 * data.digits + 4 tokens, end token included; raise it",
    ),
    Rule(
        field="data.num_held_out",
        broken=lambda c: (
            _of_sums(c) and c.data.num_held_out + c.dpo.pairs_per_step > 10 ** (2 * c.data.digits)
        ),
        message="leaves fewer training pairs than dpo.pairs_per_step; lower one of them, or raise "
        "data.digits",
    ),
    Rule(
        field="evaluation.num_pairs",
        broken=lambda c: c.data.held_out_path == "" and c.evaluation.num_pairs > _num_held_out(c),
        message="exceeds the held-out pairs, data.num_held_out or denoiser.num_held_out; lower it",
    ),
)
"""Settings that cannot hold together, or that nothing would read."""
