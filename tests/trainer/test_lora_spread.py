"""An adapter is trained by several ranks as by one process, its penalty included."""

import pytest
import torch

from tests.trainer.children import computed
from tests.trainer.lora_spread_runs import DTYPES, SPREADS

ROUNDING = {"float32": 2e-5, "bfloat16": 2e-2}
"""Relative to the largest value of a tensor; bfloat16 has eight bits."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("over", SPREADS[1:], ids=str)
@pytest.mark.parametrize("kind", ["weights", "moments"])
def test_ranks_write_the_adapter_and_the_moments_of_one_process(
    kind: str, over: tuple[int, str], dtype: str
) -> None:
    runs = computed("lora_spread")
    got, expected = (runs[dtype, *key][kind] for key in (over, SPREADS[0]))
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        difference = (got[name].float() - value.float()).abs().max()
        assert difference <= ROUNDING[dtype] * value.abs().max(), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("over", SPREADS, ids=str)
def test_the_adapter_moves_and_the_base_with_it_off_pulls(
    over: tuple[int, str], dtype: str
) -> None:
    run = computed("lora_spread")[dtype, *over]
    moved = [not torch.equal(run["before"][name], run["weights"][name]) for name in run["before"]]
    assert any(moved)
    assert run["metrics"]["train/kl/reference"] > 0
    assert run["metrics"]["train/num_updates"] == 2
