"""How preference pairs become token ids: prompt and completions apart, their boundary kept."""

from collections import Counter
from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from configs.dpo import Preferences
from tasks.data.pairs import Message, Pair
from tasks.data.preferences import Encoded, EncodePairs
from tasks.policy.tokenizing import PLAIN_TEXT, control_tokens, encoder, rendered

Ids = list[int]


def pair_encoder(tokenizer: PreTrainedTokenizerBase, data: Preferences) -> EncodePairs:
    """Return the function from pairs to token ids.

    A prompt is tokenised as for sampling, and each completion by itself, followed by the end token:
    what a prompt's last token is never depends on the completion. A pair of which a text spells a
    control token gives None.

    Raises:
        ValueError: `data.chat` is set and the tokenizer has no chat template, or it has no end
            token.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError("the model's tokenizer has no end token, which every completion ends with")
    texts = encoder(tokenizer, data)
    chats = _chat_encoder(tokenizer, data)
    special = control_tokens(tokenizer)

    def prompts(pairs: Sequence[Pair]) -> list[Ids | None]:
        written = [pair.prompt for pair in pairs if isinstance(pair.prompt, str)]
        plain = iter(texts(written) if written else [])
        return [next(plain) if isinstance(p.prompt, str) else chats(p.prompt) for p in pairs]

    def completions(written: list[str]) -> list[Ids | None]:
        encoded = tokenizer(written, add_special_tokens=False)["input_ids"]
        return [None if special & set(ids) else [*ids, tokenizer.eos_token_id] for ids in encoded]

    def encode(pairs: Sequence[Pair]) -> list[Encoded | None]:
        sides = (
            prompts(pairs),
            completions([pair.chosen for pair in pairs]),
            completions([pair.rejected for pair in pairs]),
        )
        return [None if None in row else Encoded(*row) for row in zip(*sides, strict=True)]

    return encode


def _chat_encoder(
    tokenizer: PreTrainedTokenizerBase, data: Preferences
) -> Callable[[list[Message]], Ids | None]:
    """Return the function from a chat of several turns to the ids that open its next turn."""
    special = control_tokens(tokenizer)

    def control(ids: Ids) -> Counter[int]:
        return Counter(token for token in ids if token in special)

    def encode(chat: list[Message]) -> Ids | None:
        if not data.chat:
            raise ValueError(
                "data.chat=false, but a prompt of the source is a list of messages; set "
                "data.chat=true"
            )
        if data.system_prompt and chat[0]["role"] != "system":
            chat = [{"role": "system", "content": data.system_prompt}, *chat]
        harmless = [{**message, "content": PLAIN_TEXT} for message in chat]
        ids, as_it_is = rendered(tokenizer, [chat, harmless])
        return ids if control(ids) == control(as_it_is) else None

    return encode
