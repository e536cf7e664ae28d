"""What is kept of an evaluation: `evaluation.json` beside the tables that it sums up."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from configs.evaluation import correct_parts
from configs.run import RunConfig
from tasks.data.arrow import content_digest, read_table
from tasks.data.schemas import OUTCOMES, require

RECORD_FILE = "evaluation.json"
OUTCOMES_FILE, JUDGED_FILE = "prompts.arrow", "responses.arrow"

OF_REWARD = ("provider", "parts", "arguments")
OF_ROLLOUT = ("engine", "max_tokens", "max_prompt_tokens", "stop_token_ids")


@dataclass(frozen=True, kw_only=True)
class Record:
    """The content of `evaluation.json`."""

    origin: str
    """Where the policy was found: `initial`, a directory, or a hub name."""

    step: int
    """Training steps that the policy has behind it; 0 for one that is no checkpoint."""

    policy_digest: str
    """SHA-256 of its weights."""

    prompts: str
    """Fingerprint of the prompts as they were before any tokenizer."""

    reward: Mapping[str, object]
    """What a response is scored by, and which part says that it is right."""

    sampling: Mapping[str, object]
    """How responses were drawn."""

    pass_at: Sequence[int]
    """Every k that pass@k was estimated for."""

    metrics: Mapping[str, float | None]
    """As a run logs them; null: there was nothing to take it from."""

    @property
    def name(self) -> str:
        """Name of the directory that it is kept in; other settings have another."""
        decides = (self.policy_digest, self.prompts, self.reward, self.sampling, self.pass_at)
        key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:8]
        place = Path(self.origin).name if Path(self.origin).is_absolute() else self.origin
        return f"{re.sub(r'[^A-Za-z0-9_.-]+', '--', place)}-{key}"


class Kept(NamedTuple):
    """An evaluation read back: where it lies, its record and its OUTCOMES table."""

    directory: Path
    record: Record
    outcomes: pa.Table


def describe(
    config: RunConfig,
    judged: pa.Table,
    metrics: Mapping[str, float],
    *,
    origin: str,
    step: int,
    digest: str,
) -> Record:
    """Return the record of an evaluation whose responses are `judged`."""
    (part,) = correct_parts(config.evaluation, config.reward)
    return Record(
        origin=origin,
        step=step,
        policy_digest=digest,
        prompts=prompts_fingerprint(judged),
        reward={
            **config.reward.model_dump(include=set(OF_REWARD)),
            "correct_part": part or config.reward.provider,
        },
        sampling={
            **config.rollout.model_dump(include=set(OF_ROLLOUT)),
            "num_samples": config.evaluation.num_samples,
            "temperature": config.evaluation.temperature,
            "seed": config.job.seed,
            "dtype": config.model.dtype,
        },
        pass_at=config.evaluation.ks,
        metrics=metrics,
    )


def prompts_fingerprint(judged: pa.Table) -> str:
    """Return a digest of the prompts of a JUDGED table; neither order nor tokens enter it."""
    one_each = judged.filter(pc.equal(judged["sample_index"], 0)).sort_by("prompt_id")
    names = ["prompt_id", "source", "prompt_text", "answer", "payload"]
    return content_digest(one_each.select(names).replace_schema_metadata(None))


def read_evaluation(path: Path) -> Kept:
    """Return the evaluation in a directory, or in that of an `evaluation.json`.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    directory = path.parent if path.name == RECORD_FILE else path
    try:
        record = Record(**json.loads((directory / RECORD_FILE).read_text(encoding="utf-8")))
        table = require(read_table(directory / OUTCOMES_FILE), OUTCOMES, stage="compare")
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: no evaluation ({error}); expected a directory with {RECORD_FILE} and "
            f"{OUTCOMES_FILE}, as workflows/evaluate.py leaves it"
        ) from error
    return Kept(directory, record, table)
