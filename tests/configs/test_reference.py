"""The committed configuration page is the generated one, and it leaves nothing out."""

from pathlib import Path

import pytest

from configs.__main__ import main
from configs.plan import flatten
from configs.preflight import CONTRADICTIONS, INERT, WARNINGS
from configs.reference import reference
from configs.resolve import resolve

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_committed_page_is_the_generated_one() -> None:
    assert PAGE.read_text() == reference(), "run `make docs`"


def test_the_command_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reference"]) == 0
    assert capsys.readouterr().out == reference()


def test_every_field_has_a_row_with_a_meaning_under_its_section() -> None:
    rows: dict[str, list[str]] = {}
    section = ""
    for line in reference().partition("## What is refused")[0].splitlines():
        if line.startswith("## "):
            section = line.strip("# `") + "."
        elif line.startswith("| `"):
            name, kind, default, meaning = line.removeprefix("| ").split(" | ", 3)
            rows[section + name.strip("`")] = [kind, default, meaning.removesuffix(" |")]
    assert rows.keys() == flatten(resolve("arithmetic")).keys()
    assert all(cell.strip() for cells in rows.values() for cell in cells)
    assert rows["rl.epsilon_low"][:2] == ["number, at least 0, at most 1", "`0.2`"]
    assert rows["job.name"][1] == "required"


def test_every_rule_has_a_row() -> None:
    page = reference()
    for rule in (*INERT, *CONTRADICTIONS, *WARNINGS):
        assert f"| `{rule.field}` | {rule.message} |" in page
