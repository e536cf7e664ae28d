"""ANNOTATED to TEACHER, by a teacher in vLLM.

Dimensions: `n` tokens of a response, `K` likeliest tokens.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from configs.run import RunConfig
from tasks.data.teaching import NO_SCORES, UNKNOWN_LOGPROB, Scores, rows_by_role, with_scores
from tasks.policy.declared import declared
from tasks.policy.files import PolicyFiles
from tasks.policy.vocabulary import vocabulary_size
from tasks.sampling.vllm import engine_of, process_arguments

STAND_IN = 0
"""What the teacher reads in place of a token that its tokenizer does not know."""


def add_teacher_scores(
    table: pa.Table, config: RunConfig, teachers: Mapping[str, PolicyFiles]
) -> pa.Table:
    """Return the TEACHER table of an ANNOTATED one, each row scored by its source's teacher.

    Token t of a response is scored given the prompt and the tokens before it, at temperature 1;
    token ids go to the engine as they are, so it adds no token of its own.

    Args:
        table: ANNOTATED.
        config: the run's.
        teachers: by role.

    Raises:
        ValueError: the teacher's context is too short.
    """
    prompts = table["prompt_tokens"].to_pylist()
    responses = table["response_tokens"].to_pylist()
    scores: list[Scores] = [NO_SCORES] * len(table)
    for role, picked in rows_by_role(table["source"].to_pylist(), teachers).items():
        written = [row for row in picked.tolist() if responses[row]]
        pairs = [(prompts[row], responses[row]) for row in written]
        found = score(teachers[role], config, pairs)
        for row, part in zip(written, found, strict=True):
            scores[row] = part
    return with_scores(table, scores)


def score(
    teacher: PolicyFiles, config: RunConfig, pairs: list[tuple[list[int], list[int]]]
) -> list[Scores]:
    """Return what a teacher says of every response [n, 1 + 2 K], given prompt and response.

    Raises:
        ValueError: the teacher's context is too short.
    """
    if not pairs:
        return []
    size = vocabulary_size(teacher)
    num_likeliest = min(config.rl.teacher_topk, size)
    sequences = [[*prompt, *_readable(response, size)] for prompt, response in pairs]
    with engine_of(teacher, engine_arguments(config, teacher, num_likeliest)) as engine:
        engine.narrow(size)
        every = engine.score(sequences, num_likeliest=num_likeliest)
    return [
        _scores(*(part[-len(response) :] for part in parts), response, size)
        for parts, (_, response) in zip(every, pairs, strict=True)
    ]


def _scores(ids: np.ndarray, logprobs: np.ndarray, response: list[int], vocabulary: int) -> Scores:
    """Return the scores of a response from those of its positions, the token's own first."""
    chosen = np.where(np.array(response) < vocabulary, logprobs[:, 0], UNKNOWN_LOGPROB)
    return np.concatenate([chosen[:, None], logprobs[:, 1:], ids[:, 1:]], 1, dtype=np.float64)


def _readable(tokens: list[int], vocabulary: int) -> list[int]:
    return [token if token < vocabulary else STAND_IN for token in tokens]


def engine_arguments(
    config: RunConfig, teacher: PolicyFiles, num_likeliest: int
) -> dict[str, object]:
    """Return the engine's arguments; vLLM writes a token beyond those it is given.

    Raises:
        ValueError: the teacher's context is too short.
    """
    length = config.rollout.max_prompt_tokens + config.rollout.max_tokens + 1
    context = declared(teacher).context
    if context is not None and length > context:
        raise ValueError(
            f"rollout.max_prompt_tokens + rollout.max_tokens + 1 = {length} exceeds the context "
            f"of the teacher, {context} tokens; lower one of them, or set "
            "teacher.engine=transformers"
        )
    num_tokens = max(length, config.trainer.max_tokens_per_chunk)
    return {
        **process_arguments(config.teacher.vllm, dtype=config.teacher.dtype),
        "max_model_len": length,
        "max_num_batched_tokens": num_tokens,
        "max_num_seqs": min(config.rollout.batch_size, num_tokens),
        "max_logprobs": num_likeliest,
    }
