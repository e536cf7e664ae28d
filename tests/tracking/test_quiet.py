import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "default", "-c", script]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_known_noise_is_gone_and_warnings_and_errors_stay() -> None:
    result = run(
        "import logging, warnings; logging.basicConfig(level=logging.INFO)\n"
        "from tasks.tracking.quiet import quieten\n"
        "quieten(); quieten()\n"
        "import flytekit.interaction.click_types\n"
        "for name in ('alembic.runtime.migration', 'mlflow.store.db.utils'):\n"
        "    logger = logging.getLogger(name); logger.setLevel(logging.INFO)\n"
        "    logger.info('quiet'); logger.warning('heard'); logger.error('heard')\n"
        "logging.getLogger('tasks').info('ours')\n"
        "warnings.warn('mine', DeprecationWarning)\n"
    )
    assert result.returncode == 0, result.stderr
    assert "quiet\n" not in result.stderr
    assert "click" not in result.stderr
    assert result.stderr.count("heard") == 4
    assert "ours" in result.stderr
    assert "mine" in result.stderr


def test_the_users_own_environment_wins() -> None:
    result = run(
        "import os; os.environ['MLFLOW_LOGGING_LEVEL'] = 'DEBUG'\n"
        "from tasks.tracking.quiet import quieten\n"
        "quieten(); print(os.environ['MLFLOW_LOGGING_LEVEL'])\n"
    )
    assert result.stdout.strip() == "DEBUG"


def test_tracking_modules_load_no_mlflow() -> None:
    modules = ["charts", "deck", "metrics", "progress", "quiet", "runs", "store", "summary"]
    imports = "; ".join(f"import tasks.tracking.{name}" for name in modules)
    result = run(
        f"{imports}; import sys; print({{'mlflow', 'torch', 'flytekit'}} & set(sys.modules))"
    )
    assert result.stdout.strip() == "set()"
