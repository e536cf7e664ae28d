"""The workflows can be packaged for a cluster without one, and what is registered is small."""

import tarfile
from pathlib import Path

from tests.workflows.runs import ROOT, Warm

SIZE_LIMIT = 500_000
"""Bytes of one entity: its cluster's store takes objects of one to two megabytes."""


def test_every_workflow_and_its_launch_plan_are_packaged(warm: Warm, tmp_path: Path) -> None:
    archive = tmp_path / "package.tgz"
    options = ["--copy", "all", "--source", str(ROOT), "--force", "--output", str(archive)]
    command = ["pyflyte", "--pkgs", "workflows", "package", *options]
    code, output = warm.run(command, log=tmp_path / "log")
    assert code == 0, output[-3000:]
    with tarfile.open(archive) as package:
        entities = {m.name: m.size for m in package.getmembers() if m.name.endswith(".pb")}
    kinds = {name.partition("_")[2].removesuffix(".pb") for name in entities}
    for flow in ("grpo.grpo", "opd.opd", "dpo.dpo", "dpo.dpo_diffusion"):
        assert {f"workflows.{flow}_2", f"workflows.{flow}_3"} <= kinds
    for task in ("workflows.grpo.segment", "tasks.rollout_shards.rollout_shard"):
        assert f"{task}_1" in kinds
    assert max(entities.values()) < SIZE_LIMIT
