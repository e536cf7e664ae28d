"""Preference pairs as text: where they come from."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.dpo import Preferences
from tasks.data.pairs import Pair, Pairs, load_pairs


def of_file(path: Path, **changed: object) -> Preferences:
    return Preferences(
        **{
            "source": "file",
            "path": str(path),
            "prompt_field": "prompt",
            "num_held_out": 1,
            **changed,
        }
    )


def write(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def provide(data: Preferences) -> Pairs:
    pair = Pair("p/0", "p", "q", "good", "bad")
    return Pairs([pair], [pair._replace(prompt=f"seed {data.seed}")])


def everything(pairs: Pairs) -> dict[str, Pair]:
    return {pair.name: pair for part in pairs for pair in part}


def test_a_wrong_sum_differs_from_the_right_one_in_exactly_one_digit() -> None:
    train, held_out = load_pairs(Preferences(num_held_out=500))
    assert (len(train), len(held_out)) == (9500, 500)
    for pair in (*train, *held_out):
        left, right = pair.prompt.rstrip("=").split("+")
        assert int(pair.chosen) == int(left) + int(right)
        assert len(pair.rejected) == len(pair.chosen)
        assert sum(a != b for a, b in zip(pair.chosen, pair.rejected, strict=True)) == 1


def test_every_digit_is_wrong_somewhere_and_by_every_amount() -> None:
    train, _ = load_pairs(Preferences())
    digits = [zip(p.chosen, p.rejected, strict=True) for p in train]
    wrong = {
        (place, (int(b) - int(a)) % 10)
        for pair in digits
        for place, (a, b) in enumerate(pair)
        if a != b
    }
    assert wrong == {(place, shift) for place in range(3) for shift in range(1, 10)}


def test_arithmetic_pairs_are_a_function_of_the_data_seed() -> None:
    first, again, other = (
        load_pairs(Preferences(digits=1, seed=s, num_held_out=9)) for s in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_rows_of_text_are_read_with_their_place(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{n}", "chosen": "yes", "rejected": "no"} for n in range(3)]
    pairs = everything(load_pairs(of_file(write(tmp_path / "a.jsonl", *rows))))
    assert pairs["a.jsonl/2"] == Pair("a.jsonl/2", "a.jsonl", "q2", "yes", "no")


def test_a_parquet_file_and_its_held_out_file_are_read(tmp_path: Path) -> None:
    rows = {"prompt": ["a", "b"], "chosen": ["c", "d"], "rejected": ["e", "f"]}
    for name in ("train", "test"):
        pq.write_table(pa.table(rows), tmp_path / f"{name}.parquet")
    data = of_file(tmp_path / "train.parquet", held_out_path=str(tmp_path / "test.parquet"))
    pairs = load_pairs(data)
    assert [pair.prompt for pair in pairs.train] == ["a", "b"]
    assert [pair.name for pair in pairs.held_out] == ["test.parquet/0", "test.parquet/1"]


def chat(*turns: str) -> list[dict[str, str]]:
    roles = ("user", "assistant") * len(turns)
    return [{"role": r, "content": c} for r, c in zip(roles, turns, strict=False)]


def test_the_last_message_of_a_chat_is_the_completion(tmp_path: Path) -> None:
    row = {"prompt": "q", "chosen": chat("q", "good"), "rejected": chat("q", "bad")}
    pairs = everything(load_pairs(of_file(write(tmp_path / "a.jsonl", row, row))))
    assert pairs["a.jsonl/0"][2:] == ("q", "good", "bad")


def test_without_a_prompt_column_the_chat_before_the_completion_is_the_prompt(
    tmp_path: Path,
) -> None:
    row = {"chosen": chat("a", "b", "c", "good"), "rejected": chat("a", "b", "c", "bad")}
    pairs = everything(load_pairs(of_file(write(tmp_path / "a.jsonl", row, row))))
    assert pairs["a.jsonl/0"].prompt == chat("a", "b", "c")
    assert pairs["a.jsonl/0"].chosen == "good"


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"prompt": "q", "chosen": "yes"}, "rejected"),
        ({"prompt": "q", "chosen": "", "rejected": "no"}, "chosen"),
        ({"prompt": "q", "chosen": [{"role": "user"}], "rejected": "no"}, "chosen"),
        ({"chosen": "yes", "rejected": "no"}, "prompt"),
    ],
)
def test_a_row_that_is_no_pair_is_named_with_its_field(
    tmp_path: Path, row: dict, field: str
) -> None:
    path = write(tmp_path / "a.jsonl", row, row)
    with pytest.raises(ValueError, match=rf"row 0: field '{field}'.*data\.chosen_field"):
        load_pairs(of_file(path))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"chosen": chat("a", "good"), "rejected": chat("another", "bad")},
            "fields 'chosen' and 'rejected' are about different prompts",
        ),
        (
            {"prompt": "another", "chosen": chat("a", "good"), "rejected": chat("a", "bad")},
            "fields 'chosen' and 'prompt' are about different prompts",
        ),
        (
            {"prompt": chat("a"), "chosen": chat("a", "b", "thanks"), "rejected": chat("a", "b")},
            "the last message of field 'chosen' is of role 'user', expected 'assistant'",
        ),
    ],
)
def test_completions_that_do_not_answer_one_prompt_are_refused(
    tmp_path: Path, row: dict, message: str
) -> None:
    path = write(tmp_path / "a.jsonl", row, row)
    with pytest.raises(ValueError, match=f"row 0: {message}"):
        load_pairs(of_file(path))


def test_a_prompt_of_several_messages_may_stand_in_its_column(tmp_path: Path) -> None:
    answers = [[{"role": "assistant", "content": text}] for text in ("good", "bad")]
    row = {"prompt": chat("a", "b", "c"), "chosen": answers[0], "rejected": answers[1]}
    pairs = everything(load_pairs(of_file(write(tmp_path / "a.jsonl", row, row))))
    assert pairs["a.jsonl/1"][2:] == (chat("a", "b", "c"), "good", "bad")


def test_a_provider_gives_pairs() -> None:
    data = Preferences(source="provider", provider=f"{__name__}:provide", seed=3)
    assert load_pairs(data).held_out[0].prompt == "seed 3"
