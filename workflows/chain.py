"""Runs of more steps than one execution should hold: several executions, one after the other."""

from flytekit import LaunchPlan, dynamic

from images.roles import LIGHT
from workflows.grpo import grpo

LEG = LaunchPlan.get_or_create(grpo)
"""What starts one execution; each has a graph of its own on the cluster."""


@dynamic(container_image=LIGHT)
def grpo_chain(recipe: str, leg_steps: int, num_legs: int, overrides: str = "") -> str:
    """Train one run by GRPO in `num_legs` executions of `leg_steps` steps; return its checkpoint.

    Each execution continues from the last checkpoint of the one before, so the run is the same as
    in one piece, if `trainer.lr_schedule=constant`: any other falls within each execution.
    """
    checkpoint = ""
    for leg in range(1, num_legs + 1):
        words = f"{overrides} rl.max_steps={leg * leg_steps}"
        checkpoint = LEG(recipe=recipe, overrides=words, resume_from=checkpoint)
    return checkpoint
