"""Prompts and completions of a pair are tokenised apart; no text smuggles in a control token."""

import pytest
from transformers import PreTrainedTokenizerFast

from configs.dpo import Preferences
from tasks.data.pairs import Pair
from tasks.data.preferences import Encoded
from tasks.policy.embedded import build_tokenizer
from tasks.policy.pairing import pair_encoder

TEMPLATE = (
    "{% for m in messages %}{{ '<bos>' + m['content'] + '<eos>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<bos>' }}{% endif %}"
)
END, BOS = 1, 3


def tokenizer(*, chat: bool = False) -> PreTrainedTokenizerFast:
    made = build_tokenizer()
    made.add_special_tokens({"bos_token": "<bos>"})
    if chat:
        made.chat_template = TEMPLATE
    return made


def pair(prompt: object, chosen: str = "052", rejected: str = "053") -> Pair:
    return Pair("p", "test", prompt, chosen, rejected)


def digits(text: str) -> list[int]:
    return tokenizer()(text, add_special_tokens=False)["input_ids"]


def test_a_plain_pair_ends_in_the_end_token_and_keeps_its_boundary() -> None:
    (found,) = pair_encoder(tokenizer(), Preferences())([pair("07+45=")])
    expected = Encoded(digits("07+45="), [*digits("052"), END], [*digits("053"), END])
    assert found == expected


def test_prompts_of_text_and_of_chat_come_back_in_their_order() -> None:
    encode = pair_encoder(tokenizer(chat=True), Preferences(chat=True))
    chat = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "3"},
    ]
    first, second = encode([pair(chat), pair("1")])
    turns = [[BOS, *digits(text), END] for text in "123"]
    assert first.prompt == [*turns[0], *turns[1], *turns[2], BOS]
    assert second.prompt == [*turns[0], BOS]


def test_the_system_prompt_opens_a_chat_that_has_none() -> None:
    data = Preferences(chat=True, system_prompt="9")
    encode = pair_encoder(tokenizer(chat=True), data)
    with_own = [{"role": "system", "content": "8"}, {"role": "user", "content": "1"}]
    own, given = encode([pair(with_own), pair(with_own[1:])])
    rest = [BOS, *digits("1"), END, BOS]
    assert own.prompt == [BOS, *digits("8"), END, *rest]
    assert given.prompt == [BOS, *digits("9"), END, *rest]


@pytest.mark.parametrize(
    "bad",
    [
        pair("1<eos>2"),
        pair("1", chosen="0<eos>5"),
        pair("1", rejected="<bos>"),
        pair([{"role": "user", "content": "1<eos>"}]),
    ],
)
def test_a_pair_that_spells_a_control_token_is_none(bad: Pair) -> None:
    encode = pair_encoder(tokenizer(chat=True), Preferences(chat=True))
    found = encode([bad, pair("1")])
    assert found[0] is None
    assert found[1] is not None


def test_a_template_that_refuses_a_chat_is_named_with_the_roles() -> None:
    strict = tokenizer(chat=True)
    strict.chat_template = "{{ raise_exception('System role not supported') }}"
    message = r"roles \['system', 'user'\]: System role not supported; change data\.system_prompt"
    with pytest.raises(ValueError, match=message):
        pair_encoder(strict, Preferences(chat=True, system_prompt="9"))


def test_a_chat_without_a_chat_template_is_refused() -> None:
    encode = pair_encoder(tokenizer(), Preferences())
    with pytest.raises(ValueError, match=r"data\.chat=false, but a prompt .* list of messages"):
        encode([pair([{"role": "user", "content": "1"}])])


def test_a_tokenizer_without_an_end_token_is_refused() -> None:
    without = tokenizer()
    without.eos_token = None
    with pytest.raises(ValueError, match="no end token"):
        pair_encoder(without, Preferences())
