"""The one place where known noise of libraries is kept off the terminal; errors always pass."""

import logging
import os
import warnings

ENVIRONMENT = {
    # mlflow resets its own and alembic's levels while it is imported; only this survives that.
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # A training run reports to its own store only, and offline each report waits for a name lookup.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Two bars per load and save of weights would cut through the line per step.
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}

INFO_LOGGERS = (
    "alembic.runtime.migration",  # a line per schema migration, some sixty at first use
    "mlflow.store.db.utils",  # "Creating initial MLflow database tables..."
)

WARNINGS = (
    # flytekit asks click for its version in a way that click 9.1 will drop.
    (r"The '__version__' attribute is deprecated.*[Cc]lick", r"flytekit\..*"),
    # mlflow maps its tables with an option that SQLAlchemy will drop.
    (r"The ``noload`` loader strategy is deprecated", r"mlflow\..*"),
)


def _at_least_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


def quieten() -> None:
    """Silence the listed information lines, progress bars and deprecations; idempotent.

    Call it before the libraries are imported: several read their settings only then. What the
    user has set in the environment wins. Warnings of our own code and all errors stay visible.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in INFO_LOGGERS:
        # A filter and not a level: mlflow and alembic reset levels, but no filters.
        logging.getLogger(name).addFilter(_at_least_warning)
    for message, module in WARNINGS:
        warnings.filterwarnings("ignore", message, DeprecationWarning, module)
