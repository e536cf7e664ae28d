import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.data import Data
from tasks.data.preparing import prepare
from tasks.data.problems import Problem, Problems
from tasks.data.sources import load_problems

ROWS = [{"question": f"q{number}?", "answer": f"#### {number}"} for number in range(6)]


def lines(path: Path, rows: list[object]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return str(path)


def file_data(path: str, **settings: object) -> Data:
    return Data(source="file", path=path, **{"num_held_out": 2, **settings})


def test_json_lines_and_parquet_give_the_same_problems(tmp_path: Path) -> None:
    parquet = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), parquet)
    from_lines = load_problems(file_data(lines(tmp_path / "rows.jsonl", ROWS)))
    from_parquet = load_problems(file_data(str(parquet)))
    assert [p.text for p in from_lines.train] == [p.text for p in from_parquet.train]
    assert len(from_lines.train) == 4
    problem = min((*from_lines.train, *from_lines.held_out))
    assert problem == Problem("rows.jsonl/0", "rows.jsonl", "q0?", "#### 0", json.dumps(ROWS[0]))


def test_held_out_rows_come_from_their_own_file_in_its_order(tmp_path: Path) -> None:
    path = lines(tmp_path / "train.jsonl", ROWS[:4])
    held_out = lines(tmp_path / "test.jsonl", ROWS[4:])
    problems = load_problems(file_data(path, held_out_path=held_out, num_held_out=500))
    assert [p.text for p in problems.train] == ["q0?", "q1?", "q2?", "q3?"]
    assert [p.text for p in problems.held_out] == ["q4?", "q5?"]


def test_the_split_of_one_file_depends_on_the_seed(tmp_path: Path) -> None:
    path = lines(tmp_path / "rows.jsonl", ROWS)
    splits = [load_problems(file_data(path, seed=seed)) for seed in (0, 0, 1)]
    assert splits[0] == splits[1]
    assert splits[0].held_out != splits[2].held_out
    assert set(splits[0].train).isdisjoint(splits[0].held_out)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"question": "a", "answer": "b"}\n{"question": ', "line 2: not valid JSON"),
        ("[1]", "line 1: expected a JSON object, got list"),
        ('{"question": "a"}', r"row 0: field 'answer' is None.*data\.answer_field"),
        ('{"question": " ", "answer": "b"}', "row 0: field 'question' is ' '"),
        ('{"question": "a", "answer": NaN}', "line 1: not valid JSON .NaN is no JSON value"),
        ('{"question": "a", "answer": 1e999}', "row 0: field 'answer' is inf"),
        ('{"question": "a", "answer": true}', "row 0: field 'answer' is True"),
        ('{"question": ' + "[" * 100_000, "line 1: not valid JSON"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(ValueError, match=named):
        load_problems(file_data(str(tmp_path / "rows.jsonl")))


def test_a_file_too_small_for_its_held_out_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"num_held_out=6 leaves nothing of the 6 rows"):
        load_problems(file_data(lines(tmp_path / "rows.jsonl", ROWS), num_held_out=6))


def test_another_kind_of_file_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a file that ends in \.jsonl or \.parquet"):
        load_problems(file_data(__file__))


def encode(texts: list[str]) -> list[list[int]]:
    return [[ord(character) for character in text] for text in texts]


def test_a_provider_of_the_user_is_called_and_its_answer_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_problems.py").write_text(
        "from tasks.data.problems import Problem, Problems\n"
        "def load(data):\n"
        "    return Problems([Problem('a', 'mine', '1', '2')], [Problem('b', 'mine', '3', '4')])\n"
        "def wrong(data):\n"
        "    return []\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_problems(Data(source="provider", provider="my_problems:load")).train[0].text == "1"
    with pytest.raises(TypeError, match=r"returned list, expected .*Problems"):
        load_problems(Data(source="provider", provider="my_problems:wrong"))
    with pytest.raises(ValueError, match=r"my_problems:absent.*expected package\.module:function"):
        load_problems(Data(source="provider", provider="my_problems:absent"))


def test_a_problem_both_trained_on_and_held_out_is_refused(tmp_path: Path) -> None:
    path = lines(tmp_path / "rows.jsonl", ROWS)
    data = file_data(path, held_out_path=path)
    with pytest.raises(ValueError, match=r"6 problems are both trained on and held out.*'q0\?'"):
        prepare(data, encode, max_prompt_tokens=8)


def test_the_fingerprint_changes_with_rows_tokens_and_seed(tmp_path: Path) -> None:
    one = file_data(lines(tmp_path / "one.jsonl", ROWS))
    other = file_data(lines(tmp_path / "one2.jsonl", [*ROWS[:5], {"question": "z", "answer": "1"}]))
    prints = [
        prepare(one, encode, max_prompt_tokens=8)[2],
        prepare(one, lambda texts: [[1, *ids] for ids in encode(texts)], max_prompt_tokens=8)[2],
        prepare(other, encode, max_prompt_tokens=8)[2],
        prepare(one.model_copy(update={"seed": 1}), encode, max_prompt_tokens=8)[2],
    ]
    assert len(set(prints)) == 4
    assert prepare(one, encode, max_prompt_tokens=8)[2] == prints[0]


def test_halves_of_surrogate_pairs_become_question_marks_wherever_they_stand(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.jsonl"
    row = r'{"question": "a\ud800b", "answer": "1", "other": {"k\udfff": ["\ud83d"]}}'
    path.write_text("\n".join([row] * 3))
    problem = load_problems(file_data(str(path))).train[0]
    assert problem.text == "a?b"
    assert json.loads(problem.payload)["other"] == {"k?": ["?"]}


def test_whole_numbers_of_a_column_with_gaps_have_no_decimals(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    columns = {"question": ["a", "b", "c"], "answer": [19.0, 2.5, -3.0]}
    pq.write_table(pa.table(columns), path)
    problems = load_problems(file_data(str(path), num_held_out=1))
    answers = {p.text: p.answer for part in problems for p in part}
    assert answers == {"a": "19", "b": "2.5", "c": "-3"}


@pytest.mark.parametrize("content", [b"", b"PAR1 no such thing PAR1"])
def test_what_is_no_parquet_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"rows\.parquet: not a Parquet file that can be read"):
        load_problems(file_data(str(path)))


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    full, empty = lines(tmp_path / "full.jsonl", ROWS), lines(tmp_path / "empty.jsonl", [])
    for train, held_out in ((empty, full), (full, empty)):
        with pytest.raises(ValueError, match=r"empty\.jsonl has no rows"):
            load_problems(file_data(train, held_out_path=held_out))


GOOD = Problem("p/0", "p", "q", "1")
GIVEN: dict[str, object] = {
    "number": GOOD._replace(answer=1),
    "dict": {"text": "q"},
    "half": GOOD._replace(text="\ud800"),
}


def provide_odd(data: Data) -> Problems:
    return Problems([GOOD, GIVEN[data.prompt_field]], [GOOD])


def provide_generator(_data: Data) -> Problems:
    return Problems((problem for problem in [GOOD]), [GOOD])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("number", r"train\[1\]\.answer is 1, expected text"),
        ("dict", r"train\[1\] is .*expected tasks\.data\.problems\.Problem"),
        ("half", r"train\[1\]\.text is no text that UTF-8 can hold"),
    ],
)
def test_what_a_provider_gives_is_named_with_its_place(kind: str, message: str) -> None:
    data = Data(source="provider", provider=f"{__name__}:provide_odd", prompt_field=kind)
    with pytest.raises((TypeError, ValueError), match=message):
        load_problems(data)


def test_a_provider_that_gives_a_generator_is_refused() -> None:
    data = Data(source="provider", provider=f"{__name__}:provide_generator")
    with pytest.raises(TypeError, match="two lists that are not empty"):
        load_problems(data)
