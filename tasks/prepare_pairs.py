"""Flyte tasks: preference pairs as tables, scored once by their reference."""

import time
from pathlib import Path
from typing import NamedTuple

from flytekit import Cache, task

from configs.dpo import Denoiser, DpoConfig, Preferences
from images.roles import LIGHT, TRAIN
from tasks.data.arrow import Table
from tasks.handle import Policy

CACHE_VERSION = "1"
"""Raise when the meaning of a column changes; Flyte would otherwise replay the old tables."""


class PreparedPairs(NamedTuple):
    """Pairs to train on, pairs to evaluate on, and the seconds that they took."""

    train: Table
    held_out: Table
    seconds: float


class ReferencedPairs(NamedTuple):
    """The same with the scores of the reference, and the fingerprint of pairs and reference."""

    train: Table
    held_out: Table
    fingerprint: str
    seconds: float


@task(container_image=LIGHT, cache=Cache(version=CACHE_VERSION))
def prepare_pairs(data: Preferences, policy: Policy) -> PreparedPairs:
    """Load the preference pairs, tokenise them, and leave out those that cannot train."""
    started = time.perf_counter()
    from tasks.data import preferences
    from tasks.policy.pairing import pair_encoder
    from tasks.policy.tokenizing import tokenizer_of

    encode = pair_encoder(tokenizer_of(policy.local()), data)
    tables = preferences.prepare_pairs(data, encode)
    return PreparedPairs(*tables, time.perf_counter() - started)


@task(container_image=TRAIN, cache=Cache(version=CACHE_VERSION, serialize=True))
def score_reference(
    policy: Policy,
    train: Table,
    held_out: Table,
    dtype: str,
    max_tokens_per_chunk: int,
    output_root: str,
    prepare_s: float,
) -> ReferencedPairs:
    """Score both completions of every pair under the policy before its first step."""
    started = time.perf_counter()
    from tasks.data.schemas import PREFERENCES, require
    from tasks.trainer.reference_scores import referenced

    tables = [require(table, PREFERENCES, stage="score_reference") for table in (train, held_out)]
    scored, fingerprint = referenced(
        tables,
        policy.local(),
        dtype=dtype,
        max_tokens=max_tokens_per_chunk,
        cache=Path(output_root).resolve() / "cache",
    )
    seconds = prepare_s + time.perf_counter() - started
    return ReferencedPairs(*scored, fingerprint, seconds)


@task(container_image=LIGHT, cache=Cache(version=CACHE_VERSION))
def prepare_points(denoiser: Denoiser, seed: int) -> ReferencedPairs:
    """Draw the pairs of points; their reference is asked anew for every noise."""
    started = time.perf_counter()
    import hashlib

    from tasks.data.arrow import content_digest
    from tasks.data.points import point_pairs

    tables = point_pairs(denoiser, seed=seed)
    digests = "".join(content_digest(table) for table in tables)
    fingerprint = hashlib.sha256(digests.encode()).hexdigest()
    return ReferencedPairs(*tables, fingerprint, time.perf_counter() - started)


@task(container_image=LIGHT)
def count_steps(config: DpoConfig, train: Table) -> DpoConfig:
    """Set the number of steps that the epochs make, now that the pairs are counted."""
    from configs.dpo import with_steps

    return with_steps(config, len(train))
