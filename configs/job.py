"""The `job` section: what the run is called and where it writes."""

from pydantic import Field

from configs.base import Section


class Job(Section):
    """Name, place and seed of one run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Name of the run: its directory under `output_root` and its MLflow run name."""

    output_root: str = Field(default="runs", pattern=r"^[^~]")
    """Directory under which runs, the default MLflow store and caches live; `~` is not expanded."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of everything sampled by the run: initial weights and responses."""

    @property
    def directory(self) -> str:
        """Directory of the run, `<output_root>/<name>`."""
        return f"{self.output_root.rstrip('/')}/{self.name}"
