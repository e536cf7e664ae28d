"""Which policy samples the rows of a step when rollouts run ahead of training."""

from configs.run import RunConfig

SEGMENT_STEPS = 40
"""Most steps of a segment. With two nodes per step, and as one node of the loop, its graph and that
of a run stay under the usual limit of 100 nodes."""


BEHAVIOUR = "behaviour"
"""Role of the policy that sampled the rows, where it is not the one in training."""


def sampled_from(config: RunConfig, step: int, start: int) -> int:
    """Return the step whose policy, as it is before that step's update, samples the rows of `step`.

    It trails by `rollout.staleness` steps, but never reaches back beyond a step at which a
    checkpoint is published or a segment begins. There, nothing is in flight: a run that is resumed
    from a checkpoint samples what the run that was never interrupted has sampled.

    Args:
        config: the run's.
        step: the step that trains on the rows.
        start: the first step of the execution.
    """
    every = (SEGMENT_STEPS, config.rl.save_every)
    empty = max(start, *(step // steps * steps for steps in every if steps))
    return max(step - config.rollout.staleness, empty)


def is_spent(config: RunConfig, policy_step: int, step: int, start: int) -> bool:
    """Return whether no step after `step` samples from the policy before step `policy_step`."""
    later = range(step + 1, step + config.rollout.staleness + 1)
    return all(sampled_from(config, ahead, start) != policy_step for ahead in later)
