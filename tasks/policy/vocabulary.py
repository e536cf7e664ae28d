"""Whether two models mean the same by a token id."""

from transformers import AutoConfig, AutoTokenizer

from tasks.policy.files import PolicyFiles

MAX_NAMED = 3


def token_ids(files: PolicyFiles) -> dict[str, int]:
    """Return the id of every token of a policy's tokenizer, added ones included."""
    return AutoTokenizer.from_pretrained(files.weights).get_vocab()


def vocabulary_size(files: PolicyFiles) -> int:
    """Return how many ids the tokenizer uses; a model's head may have more rows, as padding."""
    return max(token_ids(files).values()) + 1


def require_same_tokens(
    student: PolicyFiles, teacher: PolicyFiles, *, student_name: str, teacher_name: str
) -> None:
    """Refuse a teacher whose log-probabilities are about other tokens than the student's.

    Raises:
        ValueError: if the two maps from tokens to ids differ, or the teacher's head lacks some of
            the ids; naming both models.
    """
    ours, theirs = token_ids(student), token_ids(teacher)
    differing = sorted(
        token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)
    )
    if differing:
        named = ", ".join(
            f"{token!r} is {theirs.get(token, 'absent')} there and {ours.get(token, 'absent')} here"
            for token in differing[:MAX_NAMED]
        )
        raise ValueError(
            f"the teacher {teacher_name!r} and the student {student_name!r} do not share a map "
            f"from tokens to ids: {len(differing)} tokens differ ({named}). What one says about a "
            "token id means nothing to the other; choose a teacher with the student's tokenizer"
        )
    width = AutoConfig.from_pretrained(teacher.weights).get_text_config().vocab_size
    if width <= max(ours.values()):
        raise ValueError(
            f"the teacher {teacher_name!r} has {width} rows in its vocabulary head, but the "
            f"tokenizer that it shares with the student {student_name!r} uses ids up to "
            f"{max(ours.values())}; choose a teacher that knows all of them"
        )
