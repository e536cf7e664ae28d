"""Only the tables of steps that have ended are spent."""

from pathlib import Path

from tasks.data.arrow import FILE_NAME, write_table
from tasks.data.retention import spent_tables
from tasks.data.schemas import stamp
from tests.data.tables import prompts


def test_a_table_is_spent_once_its_step_has_ended(tmp_path: Path) -> None:
    for step in (3, 4, 10):
        table = stamp(prompts(), run="mine", step=step, stage="score")
        write_table(tmp_path / f"step-{step}" / FILE_NAME, table)
    write_table(tmp_path / "pool" / FILE_NAME, prompts())
    other = stamp(prompts(), run="other", step=0, stage="score")
    write_table(tmp_path / "other" / FILE_NAME, other)
    (tmp_path / "weights").mkdir()
    spent = {path.name for path in spent_tables(tmp_path, run="mine", step=4)}
    assert spent == {"step-3"}
