"""Overlong reward shaping: a penalty that grows before the token limit is reached."""

import numpy as np


def overlong_penalties(
    num_tokens: np.ndarray, *, max_tokens: int, buffer_tokens: int, penalty: float
) -> np.ndarray:
    """Return what is added to the reward of responses of `num_tokens` [N] tokens: [N], at most 0.

    DAPO's soft overlong punishment (arXiv:2503.14476): 0 up to `max_tokens - buffer_tokens`, from
    there linear down to `-penalty` at `max_tokens`, and never below that.

    Raises:
        ValueError: the buffer is not within 1 and `max_tokens`.

    >>> overlong_penalties(np.array([6, 8, 10]), max_tokens=10, buffer_tokens=4, penalty=1.0)
    array([ 0. , -0.5, -1. ])
    """
    if not 1 <= buffer_tokens <= max_tokens:
        raise ValueError(
            f"reward.overlong_buffer_tokens={buffer_tokens}: expected 1 to {max_tokens}, the"
            " rollout.max_tokens; 0 switches the penalty off"
        )
    left = max_tokens - buffer_tokens - num_tokens
    return penalty * np.clip(left / buffer_tokens, -1.0, 0.0)
