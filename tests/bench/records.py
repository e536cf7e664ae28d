"""What a measurement is recorded as, and the one table that all of them are printed in."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "build" / "bench.json"
PAGE = ROOT / "docs" / "benchmarks.md"
START, END = "<!-- table: start -->", "<!-- table: end -->"

NOT_MEASURED = "not measured"

COMPLETE = "complete"
"""The check that says whether everything was measured, at full size."""

Record = dict[str, object]
"""`{work, phase, ours, peer, ratio}`, or `{check, value}` where there is no other side."""


def compared(
    work: str, phase: str, ours: float | None, peer: float | None, *, larger: bool = False
) -> Record:
    """Return the record of a comparison; a side that is None was not measured.

    Args:
        work: on what.
        phase: of what.
        ours: our figure.
        peer: the other's.
        larger: whether a larger figure is better; `ratio` is above 1 where ours is better.
    """
    ratio = None
    if ours is not None and peer is not None:
        ratio = ours / peer if larger else peer / ours
    return {"work": work, "phase": phase, "ours": ours, "peer": peer, "ratio": ratio}


def check(name: str, value: object) -> Record:
    """Return the record of a figure of ours alone."""
    return {"check": name, "value": value}


def table(records: list[Record]) -> str:
    """Return all records as one Markdown table."""
    header = "| what | ours | peer | ratio |\n|---|---:|---:|---:|"
    return "\n".join([header, *map(_row, records)])


def _row(record: Record) -> str:
    if "check" in record:
        cells = [record["check"], _cell(record["value"]), "", ""]
    else:
        figures = (record["ours"], record["peer"], record["ratio"])
        cells = [f"{record['work']}: {record['phase']}", *map(_cell, figures)]
    return f"| {' | '.join(map(str, cells))} |"


def _cell(value: object) -> str:
    if value is None:
        return NOT_MEASURED
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write(records: list[Record]) -> None:
    """Keep the records of a run."""
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(records, indent=2) + "\n")


def read() -> list[Record]:
    """Return the records of the last run.

    Raises:
        ValueError: there was none.
    """
    if not RESULT.is_file():
        raise ValueError(f"{RESULT} is missing: nothing was measured yet; run `make bench`")
    return json.loads(RESULT.read_text())


def publish(records: list[Record], page: Path = PAGE) -> None:
    """Put the table of a complete run between the two marker lines of a page.

    Raises:
        ValueError: the run left something out, or the page has no such lines.
    """
    if not any(record.get("check") == COMPLETE and record["value"] for record in records):
        raise ValueError("this run left something out; run all of it: `make bench`")
    text = page.read_text()
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"{page} lacks the lines {START!r} and {END!r}; put them back")
    page.write_text(f"{before}{start}\n{table(records)}\n{end}{after}")
