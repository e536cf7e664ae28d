"""From pairs to a table of token ids: what fits, what is cut, what is left out."""

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.dpo import Preferences
from tasks.data.pairs import Pair
from tasks.data.preferences import (
    Encoded,
    build_pairs,
    fit,
    prepare_pairs,
    select_pairs,
    unusable,
)
from tasks.data.schemas import PREFERENCES

END = 0


def letters(pairs: Sequence[Pair]) -> list[Encoded | None]:
    """One token per letter, and an end token; `!` spells a control token."""

    def ids(text: str) -> list[int]:
        return [ord(letter) for letter in text]

    return [
        None
        if "!" in p.chosen + p.rejected
        else Encoded(ids(p.prompt), [*ids(p.chosen), END], [*ids(p.rejected), END])
        for p in pairs
    ]


def pair(prompt: str, chosen: str, rejected: str) -> Pair:
    return Pair(f"{prompt}/{chosen}/{rejected}", "test", prompt, chosen, rejected)


tokens = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@given(tokens, tokens, tokens, st.integers(2, 20))
def test_a_pair_that_is_kept_has_its_whole_prompt_and_a_token_of_each_completion(
    prompt: list[int], chosen: list[int], rejected: list[int], max_tokens: int
) -> None:
    whole = Encoded(prompt, chosen, rejected)
    if unusable(whole, max_tokens):
        room = max_tokens - len(prompt)
        assert room < 1 or chosen[:room] == rejected[:room]
        return
    cut = fit(whole, max_tokens)
    assert cut.prompt == prompt
    for side, full in ((cut.chosen, chosen), (cut.rejected, rejected)):
        assert side == full[: len(side)]
        assert len(side) >= 1
        assert len(side) == len(full) or len(prompt) + len(side) == max_tokens


def test_pairs_are_kept_cut_or_left_out_by_reason() -> None:
    pairs = [
        pair("q", "yes", "no"),
        pair("q", "long answer", "no"),
        pair("a long prompt", "yes", "no"),
        pair("q", "bad!", "no"),
        pair("q", "longer one", "longer two"),
    ]
    pool = build_pairs(pairs, letters, max_tokens=8)
    assert pool.table.schema == PREFERENCES
    assert pool.table["chosen_text"].to_pylist() == ["yes", "long answer"]
    assert pool.table["pair_id"].to_pylist() == [0, 1]
    assert pool.table["chosen_tokens"].to_pylist()[0] == [*map(ord, "yes"), END]
    assert len(pool.table["chosen_tokens"].to_pylist()[1]) == 7
    assert pool.cut == [pairs[1].name]
    assert list(pool.left_out.values()) == [[pairs[2].name], [pairs[3].name], [pairs[4].name]]
    assert [reason.split()[0] for reason in pool.left_out] == ["with", "spelling", "whose"]


def test_a_source_of_which_nothing_is_usable_is_refused_with_the_counts() -> None:
    with pytest.raises(ValueError, match="none of 2 preference pairs is usable: 2 with a prompt"):
        build_pairs([pair("long prompt", "a", "b")] * 2, letters, max_tokens=4)


def test_what_is_left_out_is_told_with_its_number(caplog: pytest.LogCaptureFixture) -> None:
    data = Preferences(num_held_out=9900, max_tokens=9)
    with caplog.at_level(logging.WARNING):
        prepare_pairs(data, letters)
    assert "100 training pairs cut at the end of a completion: arithmetic/" in caplog.text


def test_a_pair_that_is_trained_on_and_held_out_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tasks.data import preferences
    from tasks.data.pairs import Pairs

    same = pair("q", "yes", "no")
    monkeypatch.setattr(preferences, "load_pairs", lambda data: Pairs([same], [same]))
    with pytest.raises(ValueError, match="1 pairs are both trained on and held out, such as 'q'"):
        prepare_pairs(Preferences(), letters)


def test_the_steps_of_an_epoch_take_every_pair_once_under_ids_of_the_epoch() -> None:
    pool = build_pairs([pair("q", c, "no") for c in "abcdef"], letters, max_tokens=8).table
    steps = [select_pairs(pool, step, num_pairs=2, data_seed=5) for step in range(6)]
    first = [text for table in steps[:3] for text in table["chosen_text"].to_pylist()]
    assert sorted(first) == list("abcdef")
    ids = [i for table in steps for i in table["pair_id"].to_pylist()]
    assert sorted(ids) == list(range(12))
    assert steps[0].equals(select_pairs(pool, 0, num_pairs=2, data_seed=5))


def test_more_pairs_than_there_are_is_refused_by_the_settings_name() -> None:
    pool = build_pairs([pair("q", "yes", "no")], letters, max_tokens=8).table
    with pytest.raises(ValueError, match=r"dpo\.pairs_per_step=2: expected 1 to 1"):
        select_pairs(pool, 0, num_pairs=2, data_seed=0)
