"""Which of two tasks a node runs: the same work, in an image that has vLLM or in one that has not.

The image of a task is fixed when it is registered, and the engine is known when a step is expanded.
"""

from flytekit.core.python_function_task import PythonFunctionTask


def by_engine(
    engine: str, *, vllm: PythonFunctionTask, other: PythonFunctionTask
) -> PythonFunctionTask:
    """Return the task whose image has the engine."""
    return vllm if engine == "vllm" else other
