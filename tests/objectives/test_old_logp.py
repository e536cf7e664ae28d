import pickle

import pytest
import torch

from objectives.objective import OldLogpCache


def _cache() -> OldLogpCache:
    cache = OldLogpCache()
    cache.freeze(torch.tensor([7, 3]), torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]))
    cache.freeze(torch.tensor([5]), torch.tensor([[-5.0]]))
    return cache


def test_rows_are_served_by_id_at_the_asking_width() -> None:
    rows = _cache().rows(torch.tensor([5, 7]), width=3)
    assert rows.tolist() == [[-5.0, 0.0, 0.0], [-1.0, -2.0, 0.0]]
    assert _cache().rows(torch.tensor([3]), width=1).tolist() == [[-3.0]]
    assert len(_cache()) == 3


def test_frozen_rows_do_not_follow_what_they_were_taken_from() -> None:
    source = torch.tensor([[-1.0]], requires_grad=True)
    cache = OldLogpCache()
    cache.freeze(torch.tensor([1]), source)
    with torch.no_grad():
        source += 1
    served = cache.rows(torch.tensor([1]), width=1)
    assert served.tolist() == [[-1.0]]
    assert not served.requires_grad


def test_a_row_that_is_not_held_is_named() -> None:
    with pytest.raises(KeyError, match=r"rows \[9\]; freeze every row"):
        _cache().rows(torch.tensor([7, 9]), width=2)


def test_freezing_a_row_again_is_refused_until_the_cache_is_cleared() -> None:
    cache = _cache()
    with pytest.raises(ValueError, match=r"rows \[3\] are frozen already"):
        cache.freeze(torch.tensor([3]), torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"rows \[8\]"):
        cache.freeze(torch.tensor([8, 8]), torch.zeros(2, 2))
    cache.clear()
    with pytest.raises(KeyError):
        cache.rows(torch.tensor([3]), width=2)
    cache.freeze(torch.tensor([3]), torch.zeros(1, 2))


def test_shapes_are_checked_and_the_cache_pickles() -> None:
    with pytest.raises(ValueError, match="logprobs has shape"):
        OldLogpCache().freeze(torch.tensor([1, 2]), torch.zeros(1, 2))
    copy = pickle.loads(pickle.dumps(_cache()))
    assert copy.rows(torch.tensor([5]), width=1).tolist() == [[-5.0]]
