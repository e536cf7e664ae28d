from collections.abc import Iterator

import pytest

from tests.workflows.runs import Warm
from tests.workflows.runs import warm as keep_warm


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    with keep_warm(tmp_path_factory.mktemp("warm") / "scratch") as process:
        yield process
