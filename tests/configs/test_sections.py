from collections.abc import Iterator

import pytest

from configs.base import Section
from configs.docstrings import field_docstrings
from configs.resolve import resolve
from configs.run import RunConfig

MOST_FIELDS = 15


def sections(model: type[Section] = RunConfig) -> Iterator[type[Section]]:
    yield model
    for field in model.model_fields.values():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from sections(kind)


def classes() -> set[type[Section]]:
    """Return every section and the classes that it is composed of."""
    found = {base for section in sections() for base in section.__mro__}
    return {c for c in found if issubclass(c, Section) and c is not Section}


@pytest.mark.parametrize("section", sorted(classes(), key=lambda c: c.__name__))
def test_a_section_states_at_most_fifteen_fields_of_its_own(section: type[Section]) -> None:
    own = set(section.__annotations__) & set(section.model_fields)
    assert len(own) <= MOST_FIELDS


@pytest.mark.parametrize("section", sorted(set(sections()), key=lambda c: c.__name__))
def test_every_field_is_described_in_a_sentence(section: type[Section]) -> None:
    described = field_docstrings(section)
    assert list(described) == list(section.model_fields)
    assert all(text.endswith(".") for text in described.values())


def test_a_default_is_never_shared_between_two_configs() -> None:
    first, second = resolve("grpo_arithmetic"), resolve("grpo_arithmetic")
    assert first.rl.builder_arguments is not second.rl.builder_arguments
    assert first.rollout.stop_token_ids is not second.rollout.stop_token_ids


def test_what_changed_is_told_by_comparison_with_the_defaults() -> None:
    config = resolve("grpo_arithmetic", "trainer.max_grad_norm=2 rollout.min_p=0.0")
    back = RunConfig.model_validate(config.model_dump())
    assert "max_grad_norm" in config.trainer.changed()
    assert "min_p" not in config.rollout.changed()
    assert back.trainer.changed() == config.trainer.changed()
    assert back.rollout.changed() == config.rollout.changed()


def test_the_run_directory_joins_root_and_name_without_doubling_slashes() -> None:
    config = resolve("grpo_arithmetic", "job.output_root=/a/ job.name=b")
    assert config.directory == "/a/b"
