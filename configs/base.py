"""The one base of every config section: immutable, strict, and closed to unknown keys."""

from functools import cache

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Refuses unknown keys and lossy numbers, so that a stale recipe fails, not half-applies.

    A pydantic model rather than a dataclass: from JSON, flytekit fills a dataclass by dropping the
    keys it does not know and by cutting `2.5` to `2`.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
    )

    @classmethod
    def model_json_schema(cls, *args: object, **settings: object) -> dict[str, object]:
        """Return what pydantic does, kept: flytekit asks for it at every node of every graph."""
        if args or settings:
            return super().model_json_schema(*args, **settings)  # pyright: ignore[reportArgumentType]
        return _schema(cls)

    def changed(self) -> set[str]:
        """Return the names of the fields whose value differs from the default.

        Defaults are compared, not `model_fields_set`: after one trip through a task boundary every
        field counts as set.
        """
        fields = type(self).model_fields
        return {
            name
            for name, field in fields.items()
            if getattr(self, name) != field.get_default(call_default_factory=True)
        }


@cache
def _schema(section: type[Section]) -> dict[str, object]:
    return super(Section, section).model_json_schema()
