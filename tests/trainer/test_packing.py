"""Packed rows have the hidden states and gradients that they have alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from objectives.batch import TrajectoryBatch
from tasks.trainer.packing import PADDING, Row, attention_mask, pack, plan_packs, split_packs

SIZES = {
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
}
PROMPTS = [[3, 4, 5], [3, 4, 5], [3, 4, 5], [9], [9], [4, 5], [0, 4, 5]]
RESPONSES = [[7, 8], [1], [2, 2, 2, 2], [5, 6, 7], [8], [1, 1], [1, 0]]


def batch() -> TrajectoryBatch:
    """Rows of several prompts; two prompts differ by a padding id alone, one response is empty."""
    prompt_width, width = 3, 4
    ids, mask = [], []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        left, right = prompt_width - len(prompt), width - len(response)
        ids.append([0] * left + prompt + response + [0] * right)
        mask.append([0] * left + [1] * (len(prompt) + len(response)) + [0] * right)
    input_ids, attention_mask = torch.tensor(ids), torch.tensor(mask)
    rows = len(ids)
    return TrajectoryBatch(
        row_ids=torch.arange(rows),
        input_ids=input_ids,
        attention_mask=attention_mask,
        response_tokens=input_ids[:, -width:],
        loss_mask=attention_mask[:, -width:].bool(),
        token_counts=attention_mask[:, -width:].sum(1),
        advantages=torch.zeros(rows),
    )


def alone(model: torch.nn.Module) -> torch.Tensor:
    """The hidden states that predict each response token, every row by itself, unpadded."""
    states = []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        hidden = model.base_model(input_ids=torch.tensor([prompt + response])).last_hidden_state
        states.append(hidden[0, len(prompt) - 1 : -1])
    return torch.cat(states)


def packed(model: torch.nn.Module, attention_scale: float) -> torch.Tensor:
    layout = pack(batch(), attention_scale=attention_scale)
    hidden = model.base_model(
        input_ids=layout.input_ids,
        position_ids=layout.positions,
        attention_mask=attention_mask(layout.segments),
        use_cache=False,
    ).last_hidden_state
    return hidden.flatten(0, 1)[layout.predictors]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("attention_scale", [0.0, 12.0, 1e9])
def test_values_and_gradients_are_those_of_rows_alone(name: str, attention_scale: float) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().double().eval()
    weights = torch.randn(sum(map(len, RESPONSES)), 16, dtype=torch.float64)
    gradients = []
    for hidden in (alone(model), packed(model, attention_scale)):
        model.zero_grad()
        (hidden * weights).sum().backward()
        gradients.append([p.grad.clone() for p in model.base_model.parameters()])
    torch.testing.assert_close(packed(model, attention_scale), alone(model), atol=1e-12, rtol=1e-9)
    for mine, theirs in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-5)  # norms are float32


def test_the_prompt_of_a_pack_stands_once() -> None:
    layout = pack(batch(), attention_scale=1e9)
    tokens = [
        ids[kind != PADDING].tolist()
        for ids, kind in zip(layout.input_ids, layout.segments, strict=True)
    ]
    assert tokens == [
        [3, 4, 5, 7, 8, 1, 2, 2, 2, 2],
        [9, 5, 6, 7, 8],
        [4, 5, 1, 1],
        [0, 4, 5, 1, 0],
    ]


def test_a_token_of_another_response_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = MODELS["llama"]().eval()
    before = packed(model, 1e9)
    monkeypatch.setitem(globals(), "RESPONSES", [[11, 12], *RESPONSES[1:]])
    after = packed(model, 1e9)
    torch.testing.assert_close(after[2:], before[2:])
    assert not torch.allclose(after[1], before[1])


def test_long_responses_are_left_apart_where_attention_would_cost_more() -> None:
    rows = [Row(0, 100, 1000)] * 4
    assert split_packs(rows, attention_scale=3000) == [[0], [1], [2], [3]]
    assert split_packs(rows, attention_scale=1e6) == [[0, 1, 2, 3]]
    short = [Row(0, 1000, 10)] * 4
    assert split_packs(short, attention_scale=3000) == [[0, 1, 2, 3]]


def test_a_pack_cut_in_two_is_cut_in_the_same_place_again() -> None:
    rows = [Row(0, 50, 40)] * 12
    packs = split_packs(rows, attention_scale=400)
    assert len(packs) > 1
    second = [rows[index] for index in packs[1]]
    assert split_packs(second, attention_scale=400) == [list(range(len(second)))]


ROWS = st.lists(
    st.builds(
        lambda prompt, length: Row(prompt, 3 + 2 * prompt, length),
        st.integers(0, 4),
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=40,
)


@given(ROWS, st.integers(1, 120), st.sampled_from([0.0, 50.0, 1e9]))
def test_a_plan_holds_every_row_once_within_its_bound(
    rows: list[Row], bound: int, attention_scale: float
) -> None:
    chunks = plan_packs(rows, attention_scale=attention_scale, max_tokens=bound)
    assert sorted(row for chunk in chunks for row in chunk) == list(range(len(rows)))
    for chunk in chunks:
        # The model cuts a chunk into packs by itself, without knowing of the bound.
        picked = [rows[row] for row in chunk]
        packs = split_packs(picked, attention_scale=attention_scale)
        widths = [
            picked[members[0]].prompt_length + sum(picked[row].response_length for row in members)
            for members in packs
        ]
        assert len(packs) * max(widths) <= bound or len(chunk) == 1


def test_a_plan_shares_every_prompt_when_that_is_cheap() -> None:
    rows = [Row(number % 3, 10, 2) for number in range(12)]
    chunks = plan_packs(rows, attention_scale=1e9, max_tokens=100)
    assert len(chunks) == 1
    packs = split_packs([rows[row] for row in chunks[0]], attention_scale=1e9)
    assert [len(members) for members in packs] == [4, 4, 4]
