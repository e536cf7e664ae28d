"""Steps on rows that an older policy has sampled; runs in a child process."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from configs.overlap import BEHAVIOUR
from configs.run import RunConfig
from tasks.policy.files import PolicyFiles
from tasks.trainer.loop import Trained, train
from tests.policy.builders import open_policy, run_config
from tests.trainer.loop_runs import annotated, forget, place, replaced

FAST = {"learning_rate": 3e-2, "warmup_steps": 0}
"""So that an update moves the log-probabilities of sampled tokens visibly."""


def ahead(root: Path, **rl: object) -> RunConfig:
    return run_config(root, rollout={"staleness": 1}, trainer=FAST, rl=rl)


def refusal(step: "partial[Trained]", **changes: object) -> str:
    try:
        step(**changes)
    except ValueError as error:
        return str(error)
    return ""


def null_logprobs(table: pa.Table) -> pa.Table:
    lists = table["engine_logprobs"].to_pylist()
    return replaced(table, "engine_logprobs", [[None, *lists[0][1:]], *lists[1:]])


def compute() -> dict:
    """Train once on a policy's own rows, then on rows of the policy before that update."""
    forget()
    with TemporaryDirectory() as directory:
        root = Path(directory)
        config = ahead(root)
        zero: PolicyFiles = open_policy(config)
        first, second = (annotated(config, zero, number) for number in range(2))
        one = train(config, first, zero, place(root, "one"))
        numbers = iter(range(100))

        def step(config: RunConfig, table: pa.Table, behaviour: PolicyFiles) -> Trained:
            to = place(root, f"run-{next(numbers)}")
            return train(config, table, one.policy, to, {BEHAVIOUR: behaviour})

        stale = step(config, second, zero)
        forget()
        cold = step(config, second, zero)
        engine = ahead(root, old_logprobs="engine")
        ours = replaced(second, "policy_version", [1] * len(second))
        ours = replaced(ours, "policy_digest", [one.policy.digest] * len(second))
        return {
            "own rows": one,
            "stale": stale,
            "cold": cold,
            "from the engine": step(engine, second, zero),
            "as if its own": step(config, ours, one.policy),
            "refusals": {
                "too old": refusal(partial(step, run_config(root), second, zero)),
                "newer": refusal(partial(step, config, second, replace(zero, version=2))),
                "another": refusal(partial(step, config, second, one.policy)),
                "other weights": refusal(partial(step, config, second, replace(zero, digest="x"))),
                "silent engine": refusal(partial(step, engine, null_logprobs(second), zero)),
            },
        }
