"""A rollout cut into shards and joined again is the rollout that was never cut."""

import numpy as np
import pyarrow as pa
import pytest

from configs.run import RunConfig
from tasks.data.schemas import read_stamp, stamp
from tasks.policy.files import PolicyFiles
from tasks.sampling.rollout import rollout
from tasks.sampling.shards import join, shard_of, shard_start, slowest, timed
from tests.policy.builders import open_policy, problems, run_config

NUM_PROMPTS, GROUP_SIZE = 7, 4
EXACT = ("sample_id", "sample_index", "group_id", "response_tokens", "finish_reason")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    sizes = {"prompts_per_step": NUM_PROMPTS, "group_size": GROUP_SIZE}
    return run_config(tmp_path_factory.mktemp("runs"), rollout=sizes)


@pytest.fixture(scope="module")
def policy(config: RunConfig) -> PolicyFiles:
    return open_policy(config)


@pytest.fixture(scope="module")
def whole(config: RunConfig, policy: PolicyFiles) -> pa.Table:
    return rollout(config, 0, prompts(), policy, refill=1)


def prompts() -> pa.Table:
    return stamp(problems(NUM_PROMPTS), run="tiny", step=0, stage="select_prompts")


def sharded(config: RunConfig, policy: PolicyFiles, num_shards: int) -> list[pa.Table]:
    return [
        rollout(
            config,
            0,
            shard_of(prompts(), shard, num_shards),
            policy,
            refill=1,
            first_prompt=shard_start(NUM_PROMPTS, shard, num_shards),
        )
        for shard in range(num_shards)
    ]


@pytest.mark.parametrize("num_shards", [1, 2, 3])
def test_shards_of_several_prompts_give_the_same_bits(
    config: RunConfig, policy: PolicyFiles, whole: pa.Table, num_shards: int
) -> None:
    shards = [timed(table, 1.0) for table in sharded(config, policy, num_shards)]
    joined = join(prompts(), shards[::-1], group_size=GROUP_SIZE)
    assert joined.equals(whole)
    assert joined.schema.metadata == whole.schema.metadata


def test_a_prompt_by_itself_differs_by_rounding_alone(
    config: RunConfig, policy: PolicyFiles, whole: pa.Table
) -> None:
    joined = join(prompts(), sharded(config, policy, NUM_PROMPTS), group_size=GROUP_SIZE)
    assert all(joined[name].equals(whole[name]) for name in EXACT)
    pairs = zip(*(table["engine_logprobs"].to_pylist() for table in (joined, whole)), strict=True)
    assert max(np.abs(np.subtract(a, b)).max() for a, b in pairs) < 1e-5


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7])
def test_every_prompt_is_in_one_shard_and_every_shard_has_one(num_shards: int) -> None:
    parts = [shard_of(prompts(), shard, num_shards) for shard in range(num_shards)]
    assert pa.concat_tables(parts).equals(prompts())
    sizes = [len(part) for part in parts]
    assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1


def test_the_time_of_shards_is_that_of_the_slowest(whole: pa.Table) -> None:
    assert slowest([timed(whole, 0.25), timed(whole, 2.5), timed(whole, 1.0)]) == 2.5


def test_what_is_missing_is_named(whole: pa.Table) -> None:
    with pytest.raises(
        ValueError, match=r"1 samples are missing, the first is sample_index=1 of group_id=0"
    ):
        join(prompts(), [whole.slice(0, 1), whole.slice(2)], group_size=GROUP_SIZE)


def test_what_is_there_twice_is_named(whole: pa.Table) -> None:
    with pytest.raises(
        ValueError, match=r"4 samples are there more than once, .* sample_index=0 of group_id=6"
    ):
        join(prompts(), [whole, whole.slice(24, 4)], group_size=GROUP_SIZE)


def test_what_belongs_to_another_step_is_named(whole: pa.Table) -> None:
    with pytest.raises(
        ValueError, match=r"4 samples belong to no prompt of this step, .* group_id=6"
    ):
        join(prompts().slice(0, 6), [whole], group_size=GROUP_SIZE)


@pytest.mark.parametrize("key", ["engine_version", "sampling_seed", "step"])
def test_shards_of_unequal_origin_are_refused(
    config: RunConfig, policy: PolicyFiles, key: str
) -> None:
    first, second = sharded(config, policy, 2)
    origin = {**read_stamp(second), key: "other"}
    strange = second.replace_schema_metadata(origin)
    with pytest.raises(ValueError, match=f"shards differ in {key}: .* and 'other'; run the"):
        join(prompts(), [first, strange], group_size=GROUP_SIZE)
