"""The tokenizer of a policy, and how a problem's text becomes the prompt that it reads."""

from collections import Counter
from collections.abc import Callable

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from configs.data import Data
from tasks.policy import resident
from tasks.policy.digests import file_digest
from tasks.policy.files import PolicyFiles

PLAIN_TEXT = "x"
"""A text without control tokens, to count those that the template itself writes."""


def tokenizer_of(files: PolicyFiles) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a policy; prompts are padded on the left."""
    return resident.borrow(
        "tokenizer",
        tokenizer_digest(files),
        lambda: AutoTokenizer.from_pretrained(files.weights, padding_side="left"),
    )


def tokenizer_digest(files: PolicyFiles) -> str:
    """Return a digest of the tokenizer's files."""
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    present = [files.weights / name for name in names if (files.weights / name).is_file()]
    return ":".join(file_digest(path) for path in present)


def encoder(
    tokenizer: PreTrainedTokenizerBase, data: Data
) -> Callable[[list[str]], list[list[int] | None]]:
    """Return the function from problems to prompts: token ids, the generation prompt included.

    A chat is put through the template once and never tokenised again. A text whose prompt holds
    other control tokens than the template's own spells one, and gives None.

    Raises:
        ValueError: `data.chat` is set and the tokenizer has no chat template.
    """
    if data.chat and not tokenizer.chat_template:
        raise ValueError(
            "data.chat=true: the model's tokenizer has no chat template; set data.chat=false"
        )
    render = _chat(tokenizer, data.system_prompt) if data.chat else _plain(tokenizer)
    special = control_tokens(tokenizer)

    def control(ids: list[int]) -> Counter[int]:
        return Counter(token for token in ids if token in special)

    (expected,) = (control(ids) for ids in render([PLAIN_TEXT]))

    def encode(texts: list[str]) -> list[list[int] | None]:
        return [ids if control(ids) == expected else None for ids in render(texts)]

    return encode


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids that steer a model; one that only stands for unknown text is none of them."""
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    steering = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    unknown = {tokenizer.unk_token_id} - steering
    return special.union(tokenizer.all_special_ids) - unknown


def _plain(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[str]], list[list[int]]]:
    return lambda texts: tokenizer(texts)["input_ids"]


def _chat(
    tokenizer: PreTrainedTokenizerBase, system_prompt: str
) -> Callable[[list[str]], list[list[int]]]:
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []

    def render(texts: list[str]) -> list[list[int]]:
        chats = [[*system, {"role": "user", "content": text}] for text in texts]
        return rendered(tokenizer, chats)

    return render


def rendered(
    tokenizer: PreTrainedTokenizerBase, chats: list[list[dict[str, str]]]
) -> list[list[int]]:
    """Return chats as ids, each up to where its next turn begins.

    Raises:
        ValueError: the tokenizer's template refuses one.
    """
    try:
        return tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except TemplateError as error:
        roles = [message["role"] for message in chats[0]]
        raise ValueError(
            f"the chat template of {tokenizer.name_or_path!r} refuses a chat, such as one of the "
            f"roles {roles}: {error}; change data.system_prompt or the rows, or set data.chat=false"
        ) from error
