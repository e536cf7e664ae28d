"""The learning rate as a function of the optimizer step alone."""

from configs.trainer import Optimizer


def learning_rate(step: int, num_steps: int, config: Optimizer) -> float:
    """Return the learning rate of one optimizer step.

    A linear warmup, then constant, or linear down to `final_lr_fraction` at the last step. A pure
    function, so neither the number of processes nor a restart can shift it.

    Args:
        step: optimizer steps taken before this one.
        num_steps: optimizer steps of the whole run.
        config: the schedule.

    >>> config = Optimizer(learning_rate=1.0, warmup_steps=2, final_lr_fraction=0.0)
    >>> [learning_rate(step, 6, config) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.lr_schedule == "constant":
        return config.learning_rate
    remaining = max(num_steps - step, 0) / max(num_steps - config.warmup_steps, 1)
    floor = config.final_lr_fraction
    return config.learning_rate * (floor + (1 - floor) * remaining)
