"""The `tracking` section: MLflow and the Flyte deck."""

from pydantic import Field

from configs.base import Section


class Tracking(Section):
    """Where metrics and reports go."""

    uri: str = ""
    """MLflow tracking URI; empty: an SQLite store and artifact folder under `job.output_root`."""

    experiment: str = "flyte-posttrain"
    """MLflow experiment."""

    deck_every: int = Field(default=10, ge=0)
    """Steps between Flyte decks, beside those of the first and last step; 0: none."""

    keep_tables: bool = True
    """Keep the annotated table of every step under the run's directory."""
