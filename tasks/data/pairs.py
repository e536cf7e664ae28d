"""Preference pairs as text: what a source of them gives, before any tokenizer has seen it."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np

from configs.dpo import Preferences
from tasks.data.arithmetic import arithmetic_problems
from tasks.data.files import both_parts, read_objects
from tasks.data.gsm8k import gsm8k_problems, solution_text
from tasks.data.problems import Problem
from tasks.data.sources import provided

Message = dict[str, str]
"""One turn of a chat: `role` and `content`."""

WRONG = 1
"""Second part of the seed of wrong answers; the first is `data.seed`, which orders problems."""


class Pair(NamedTuple):
    """A prompt with two completions, of which the first is preferred.

    Attributes:
        name: where it comes from, unique within the source.
        source: name of the file or task.
        prompt: text, or a chat up to the turn that is to be completed.
        chosen: the preferred completion.
        rejected: the other one.
    """

    name: str
    source: str
    prompt: str | list[Message]
    chosen: str
    rejected: str


class Pairs(NamedTuple):
    """Pairs to train on and pairs to evaluate on; none is in both."""

    train: list[Pair]
    held_out: list[Pair]


def load_pairs(data: Preferences) -> Pairs:
    """Return the pairs of the source that the `data` section names.

    Raises:
        ValueError: the section's settings leave nothing to train on, or a row cannot be read.
        TypeError: a provider returned something else than `Pairs`.
    """
    train, held_out = _all_pairs(data)
    return Pairs(train[: data.num_train or None], held_out)


def _all_pairs(data: Preferences) -> Pairs:
    match data.source:
        case "arithmetic":
            return arithmetic_pairs(data)
        case "gsm8k":
            return gsm8k_pairs(data)
        case "file":
            return Pairs(*both_parts(data, lambda path: read_pairs(path, data)))
        case "provider":
            return provided(data, Pairs, Pair)


def arithmetic_pairs(data: Preferences) -> Pairs:
    """Return every addition with its sum preferred to one in which a digit is wrong.

    >>> train, _ = arithmetic_pairs(Preferences())
    >>> sum(a != b for a, b in zip(train[0].chosen, train[0].rejected))
    1
    """
    problems = arithmetic_problems(
        digits=data.digits, seed=data.seed, num_held_out=data.num_held_out
    )
    seeds = np.random.SeedSequence([data.seed, WRONG]).spawn(len(problems))
    return Pairs(*(_with_wrong(part, seed) for part, seed in zip(problems, seeds, strict=True)))


def _with_wrong(problems: Sequence[Problem], seed: np.random.SeedSequence) -> list[Pair]:
    generator = np.random.Generator(np.random.PCG64(seed))
    width = len(problems[0].answer)
    places = generator.integers(width, size=len(problems)).tolist()
    shifts = generator.integers(1, 10, size=len(problems)).tolist()
    return [
        Pair(p.problem_id, p.source, p.text, p.answer, _altered(p.answer, place, shift))
        for p, place, shift in zip(problems, places, shifts, strict=True)
    ]


def _altered(answer: str, place: int, shift: int) -> str:
    digit = (int(answer[place]) + shift) % 10
    return f"{answer[:place]}{digit}{answer[place + 1 :]}"


def gsm8k_pairs(data: Preferences) -> Pairs:
    r"""Return every word problem with its solution preferred to one whose last digit is wrong.

    >>> train, _ = gsm8k_pairs(Preferences(source="gsm8k"))
    >>> train[0].chosen[-8:], train[0].rejected[-8:-1]
    ('\n#### 72', '\n#### 7')
    """
    parts = gsm8k_problems(num_held_out=data.num_held_out)
    seeds = np.random.SeedSequence([data.seed, WRONG]).spawn(len(parts))
    return Pairs(*(_with_wrong_end(part, seed) for part, seed in zip(parts, seeds, strict=True)))


def _with_wrong_end(problems: Sequence[Problem], seed: np.random.SeedSequence) -> list[Pair]:
    shifts = np.random.Generator(np.random.PCG64(seed)).integers(1, 10, size=len(problems))
    return [
        Pair(p.problem_id, p.source, p.text, solution, _altered(solution, len(solution) - 1, shift))
        for p, shift in zip(problems, shifts.tolist(), strict=True)
        for solution in [solution_text(p.answer)]
    ]


def read_pairs(path: str, data: Preferences) -> list[Pair]:
    """Return every row of a file as a pair, in the file's order.

    A completion is text, or a chat whose last message it is. What comes before that message is the
    prompt, the same in both chats and, where there is one, in the prompt's column.

    Raises:
        ValueError: naming the file, the row and the field that cannot be used.
    """
    name = PurePosixPath(path).name
    pairs = []
    for number, row in enumerate(read_objects(path)):
        where = f"{path}, row {number}"
        chosen = _completion(row, data.chosen_field, where)
        rejected = _completion(row, data.rejected_field, where)
        prompts = {data.chosen_field: chosen[:-1], data.rejected_field: rejected[:-1]}
        if data.prompt_field in row or not any(prompts.values()):
            prompts[data.prompt_field] = _conversation(row, data.prompt_field, where)
        before = _the_same(prompts, where)
        given = row.get(data.prompt_field)
        prompt = given if isinstance(given, str) else before
        last = (chosen[-1]["content"], rejected[-1]["content"])
        pairs.append(Pair(f"{name}/{number}", name, prompt, *last))
    return pairs


def _completion(row: dict[str, object], field: str, where: str) -> list[Message]:
    """Return a field as a chat that ends with a completion."""
    turns = _conversation(row, field, where)
    if isinstance(row[field], list) and turns[-1]["role"] != "assistant":
        raise ValueError(
            f"{where}: the last message of field {field!r} is of role {turns[-1]['role']!r}, "
            "expected 'assistant', as it is the completion to be trained on"
        )
    return turns


def _the_same(prompts: dict[str, list[Message]], where: str) -> list[Message]:
    """Return the one prompt that several fields hold; a completion alone holds none."""
    given = {field: turns for field, turns in prompts.items() if turns}
    (first, prompt), *others = given.items()
    for field, other in others:
        if other != prompt:
            raise ValueError(
                f"{where}: fields {first!r} and {field!r} are about different prompts: "
                f"{str(prompt)[:80]} and {str(other)[:80]}; correct the row, or set "
                "data.prompt_field to a name that no row has, to read the prompt from the chats"
            )
    return prompt


def _conversation(row: dict[str, object], field: str, where: str) -> list[Message]:
    """Return a field as a chat; a text is a chat of one message."""
    value = row.get(field)
    if isinstance(value, str) and value.strip():
        return [{"role": "user", "content": value}]
    if isinstance(value, list) and value and all(_is_message(turn) for turn in value):
        return [{"role": turn["role"], "content": turn["content"]} for turn in value]
    raise ValueError(
        f"{where}: field {field!r} is {str(value)[:80]!r}, expected text or a list of "
        f"messages with role and content; the row has {sorted(row)}: set data.prompt_field, "
        "data.chosen_field and data.rejected_field"
    )


def _is_message(turn: object) -> bool:
    return isinstance(turn, dict) and all(isinstance(turn.get(k), str) for k in ("role", "content"))
