"""The pages under `docs/` and the README say what the code does: names, links, examples."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.messages import MOVED
from configs.plan import flatten
from configs.resolve import resolve, resolve_any
from objectives.dpo_metrics import DPO_METRICS
from objectives.grpo_metrics import METRIC_ADAPTER
from objectives.opd import ADVANTAGE_METRICS, DIRECT_ADAPTER
from tasks.annotators.summary import group_summary
from tasks.run.closing import STAGES
from tests.data import tables

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
METRIC = re.compile(r"(train|val|perf)/[a-z0-9_]+(/[a-z0-9_]+)*")
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_EXAMPLES = [page for page in PAGES if BLOCK.search(page.read_text())]


def _ids(page: Path) -> str:
    return page.name


def documented_metrics() -> list[str]:
    text = (ROOT / "docs" / "metrics.md").read_text()
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def named_in_source() -> Iterator[str]:
    """Every public metric name that stands as a literal in the packages."""
    for path in sorted((ROOT / "tasks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and METRIC.fullmatch(node.value):
                yield node.value


def logged_metrics() -> set[str]:
    summary = {f"train/{name}" for name in group_summary(tables.annotated())}
    parts = {name for name in summary if name.startswith("train/reward/part/")}
    return {
        *METRIC_ADAPTER.names.values(),
        *DIRECT_ADAPTER.names.values(),
        *DPO_METRICS.names.values(),
        *ADVANTAGE_METRICS.values(),
        *named_in_source(),
        *(f"perf/{stage}_s" for stage in STAGES),
        *(summary - parts),
        "train/reward/part/<part>",
        *(f"val/pass_at{end}/<k>" for end in ("", "_low", "_high")),
        "val/accuracy_of/<source>",
    }


def test_the_metrics_page_has_a_row_for_every_metric_and_no_other() -> None:
    assert sorted(documented_metrics()) == sorted(logged_metrics())


def test_every_metric_row_says_unit_meaning_range_and_remedy() -> None:
    rows = (ROOT / "docs" / "metrics.md").read_text().splitlines()
    for row in (row for row in rows if row.startswith("| `")):
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 5, row
        assert all(cells), row


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        name, _, heading = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        assert not heading or heading in _anchors(file), target


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=_ids)
def test_the_python_examples_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _write_a_run(tmp_path / "runs" / "grpo_arithmetic" / "tables")
    source = "\n".join(BLOCK.findall(page.read_text()))
    exec(compile(source, str(page), "exec"), {"__name__": "example"})


def _write_a_run(folder: Path) -> None:
    from tasks.data.arrow import write_table

    for step in range(2):
        write_table(folder / f"step-{step:06d}.arrow", tables.annotated())


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_paths_and_make_targets_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    packages = "workflows|tasks|objectives|configs|images|tests|docs|examples"
    for path in re.findall(rf"`((?:{packages})/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"`make ([a-z]+)`", text):
        assert target in targets, target


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_settings_that_a_page_names_exist(page: Path) -> None:
    configs = resolve("arithmetic"), resolve_any("dpo_arithmetic")
    known = {key for config in configs for key in flatten(config)} | MOVED.keys()
    sections = {key.split(".")[0] for key in known} - {"algorithm"}
    for key in re.findall(rf"`((?:{'|'.join(sections)})\.[a-z_.]+)(?:=[^`]*)?`", page.read_text()):
        is_known = key in known or any(name.startswith(f"{key}.") for name in known)
        assert is_known or key.startswith("rl.builder_arguments"), key


def test_the_tree_in_the_readme_has_every_directory_of_code_and_no_other() -> None:
    tree = re.findall(r"^([a-z_/]+/) +\S", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert all((ROOT / path).is_dir() for path in tree)
    packages = {f"{path.parent.relative_to(ROOT)}/" for path in ROOT.glob("[a-z]*/**/__init__.py")}
    assert {path for path in packages if not path.startswith("tests/")} <= set(tree)


def test_the_first_screen_of_the_readme_has_the_two_commands_and_no_other() -> None:
    screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:25])
    commands = re.search(r"```\n(.*?)```", screen, re.DOTALL)
    assert commands is not None
    assert [line.split("#")[0].split() for line in commands[1].splitlines()] == [
        ["make", "grpo"],
        ["make", "test"],
    ]


def test_the_help_of_the_workflow_lists_what_can_be_run_alone() -> None:
    pyflyte = Path(sys.executable).with_name("pyflyte")
    done = subprocess.run(
        [pyflyte, "run", "workflows/grpo.py", "--help"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f" {name} " in done.stdout for name in ("grpo", "grpo_step", "segment", "evaluate"))
