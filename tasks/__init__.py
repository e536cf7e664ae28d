"""The boxes of a training step: Flyte shells here, plain Python in the folders."""

import os

# `pyflyte run` has the project on the path only while it loads the workflow. Packages that are met
# first inside a task's body must be known by then.
import objectives  # noqa: F401
from tasks.tracking.quiet import quieten

# flytekit's local cache is global to the user and outlives the directories that its entries point
# to, so a hit can hand over what is gone. Locally the embedded model keeps its own, verified cache.
os.environ.setdefault("FLYTE_LOCAL_CACHE_ENABLED", "false")

# OpenMP threads that wait by spinning take the processor from whatever else runs here: with one
# busy neighbour on two cores, a training step takes ten times as long. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

quieten()
