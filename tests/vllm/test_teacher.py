"""A teacher in vLLM says what one in transformers says: at the same tokens, over the same ids."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from transformers import PreTrainedModel

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` runs these")

from tasks.data.arithmetic import VOCABULARY
from tasks.data.schemas import ANNOTATED, TEACHER, require
from tasks.data.teaching import UNKNOWN_LOGPROB
from tasks.policy import resident
from tasks.policy.files import PolicyFiles
from tasks.sampling import vllm_teacher
from tasks.sampling.vllm import KIND
from tasks.trainer import teacher_scores
from tests.data.tables import build
from tests.policy.builders import run_config
from tests.trainer.builders import reference
from tests.vllm.builders import MAX_PROMPT, MAX_TOKENS, TOLERANCE, model, settings, written

PROMPTS = [[4, 5, 6], [7], [3] * MAX_PROMPT, [4, 5, 6, 13], [2, 2], [1, 9]]
RESPONSES = [[5, 6, 7], [8], list(range(3, 3 + MAX_TOKENS)), [], [9, 10, 1], [12]]
SIZE = len(VOCABULARY)
PADDED = SIZE + 12
NOTHING: dict[str, int] = {}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("teachers")


@pytest.fixture(scope="module")
def teacher(root: Path) -> PolicyFiles:
    return written(model(), root / "plain")


def padded() -> PreTrainedModel:
    """The same model with more rows than its tokenizer has ids, and likely ones at that."""
    wide = model()
    wide.resize_token_embeddings(PADDED, mean_resizing=False)
    wide.get_output_embeddings().weight.data[SIZE:] = wide.get_output_embeddings().weight[3:15]
    return wide


@pytest.fixture(scope="module")
def wide(root: Path) -> PolicyFiles:
    return written(padded(), root / "padded")


def annotated(responses: list[list[int]], sources: list[str]) -> pa.Table:
    return build(
        ANNOTATED,
        len(responses),
        group_size=1,
        prompt_tokens=PROMPTS[: len(responses)],
        source=sources,
        response_tokens=responses,
        engine_logprobs=[[-1.0] * len(r) for r in responses],
        loss_mask=[[True] * len(r) for r in responses],
    )


Add = Callable[..., pa.Table]


def scored(
    add: Add,
    teachers: dict[str, PolicyFiles],
    *,
    topk: int = 0,
    responses: list[list[int]] = RESPONSES,
    sources: list[str] | None = None,
    trainer: dict[str, int] = NOTHING,
) -> pa.Table:
    rollout = {"max_prompt_tokens": MAX_PROMPT, "max_tokens": MAX_TOKENS}
    config = run_config(
        teachers["teacher"].weights.parent,
        rollout=rollout,
        rl={"teacher_topk": topk},
        trainer=trainer,
    )
    table = annotated(responses, sources or ["arithmetic"] * len(responses))
    result = add(table, config, teachers)
    require(result, TEACHER, stage="test")
    return result


def both(teachers: dict[str, PolicyFiles], **options: object) -> tuple[pa.Table, pa.Table]:
    adds = (vllm_teacher.add_teacher_scores, teacher_scores.add_teacher_scores)
    return tuple(scored(add, teachers, **options) for add in adds)


def flat(table: pa.Table, name: str) -> np.ndarray:
    return np.concatenate([np.array(row, np.float64) for row in table[name].to_pylist() if row])


def assert_alike(found: pa.Table, expected: pa.Table, names: tuple[str, ...]) -> None:
    for name in names:
        assert [len(row) for row in found[name].to_pylist()] == list(map(len, RESPONSES))
        np.testing.assert_allclose(flat(found, name), flat(expected, name), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("max_tokens_per_chunk", [8, 4096])
def test_token_t_is_scored_given_all_before_it(
    teacher: PolicyFiles, max_tokens_per_chunk: int
) -> None:
    """Also where a prompt is taken in parts."""
    chunk = {"max_tokens_per_chunk": max_tokens_per_chunk}
    table = scored(vllm_teacher.add_teacher_scores, {"teacher": teacher}, trainer=chunk)
    for prompt, response, found in zip(
        PROMPTS, RESPONSES, table["teacher_logprobs"].to_pylist(), strict=True
    ):
        assert len(found) == len(response)
        if response:
            expected, _ = reference(model(), prompt, response)
            assert found == pytest.approx(expected.tolist(), abs=TOLERANCE)
    assert table["teacher_topk_ids"].null_count == len(RESPONSES)


@pytest.mark.parametrize("topk", [3, SIZE, SIZE + 5])
def test_the_likeliest_tokens_are_those_of_the_teacher_in_transformers(
    teacher: PolicyFiles, topk: int
) -> None:
    found, expected = both({"teacher": teacher}, topk=topk)
    assert found["teacher_topk_ids"].to_pylist() == expected["teacher_topk_ids"].to_pylist()
    assert_alike(found, expected, ("teacher_logprobs", "teacher_topk_logprobs"))


def test_rows_of_the_head_that_no_token_uses_are_left_out(wide: PolicyFiles) -> None:
    found, expected = both({"teacher": wide}, topk=SIZE)
    assert_alike(found, expected, ("teacher_logprobs", "teacher_topk_logprobs"))
    mass = np.exp(flat(found, "teacher_topk_logprobs")).sum(-1)
    assert mass == pytest.approx(np.ones(len(mass)), abs=1e-5)
    prompt, response = PROMPTS[0], RESPONSES[0]
    whole, _ = reference(padded(), prompt, response)
    assert np.abs(found["teacher_logprobs"].to_pylist()[0] - whole.detach().numpy()).max() > 0.1


def test_a_token_that_the_teacher_does_not_know_has_a_floor_and_changes_no_other_row(
    teacher: PolicyFiles,
) -> None:
    responses = [[5, SIZE, 7], [8], [SIZE + 3, 6]]
    table = scored(vllm_teacher.add_teacher_scores, {"teacher": teacher}, responses=responses)
    rows = table["teacher_logprobs"].to_pylist()
    unknown = [[value == UNKNOWN_LOGPROB for value in row] for row in rows]
    assert unknown == [[False, True, False], [False], [True, False]]
    stand_in, _ = reference(model(), PROMPTS[0], [5, vllm_teacher.STAND_IN, 7])
    assert rows[0][0] == pytest.approx(stand_in[0].item(), abs=TOLERANCE)
    assert rows[0][2] == pytest.approx(stand_in[2].item(), abs=TOLERANCE)


def test_every_row_is_scored_by_the_teacher_of_its_source(teacher: PolicyFiles, root: Path) -> None:
    other = written(model(seed=1), root / "other")
    teachers = {"teacher": teacher, "teacher:b": other}
    found, expected = both(teachers, sources=["a", "b", "a", "b", "b", "a"])
    assert_alike(found, expected, ("teacher_logprobs",))
    alone = scored(vllm_teacher.add_teacher_scores, {"teacher": teacher})
    rows = alone["teacher_logprobs"].to_pylist()
    assert rows[0] == pytest.approx(found["teacher_logprobs"].to_pylist()[0], abs=TOLERANCE)
    assert np.abs(np.subtract(rows[4], found["teacher_logprobs"].to_pylist()[4])).max() > 0.1


def test_a_table_without_a_response_starts_no_engine(teacher: PolicyFiles) -> None:
    resident.drop(KIND)
    empty = scored(vllm_teacher.add_teacher_scores, {"teacher": teacher}, responses=[[], []])
    assert empty["teacher_logprobs"].to_pylist() == [[], []]
    assert resident.borrow(KIND, "none", lambda: None) is None
    resident.drop(KIND)


def test_a_context_that_is_too_short_is_refused_with_what_to_do(
    teacher: PolicyFiles, root: Path
) -> None:
    config = settings(root, max_tokens=128 - MAX_PROMPT)
    with pytest.raises(ValueError, match=r"= 129 exceeds the context of the teacher, 128 tokens"):
        vllm_teacher.add_teacher_scores(
            annotated(RESPONSES, ["a"] * 6), config, {"teacher": teacher}
        )
