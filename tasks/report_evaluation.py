"""Flyte task: what an evaluation comes to."""

from flytekit import Deck, current_context, task

from configs.run import RunConfig
from images.roles import LIGHT
from tasks.data.arrow import Table
from tasks.handle import Policy


@task(container_image=LIGHT, enable_deck=True, deck_fields=())
def report_evaluation(config: RunConfig, policy: Policy, origin: str, judged: Table) -> str:
    """Keep the tables, `evaluation.json` and a report; print the result; return their directory."""
    from tasks.run.evaluating import keep_evaluation

    directory, html = keep_evaluation(
        config, judged, origin=origin, step=policy.step, digest=policy.digest
    )
    current_context().decks.clear()  # a local run would repeat every earlier deck in this one
    Deck("evaluation", html)
    return str(directory)
