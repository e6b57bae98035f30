"""ENG-13: a request may end from outside in any state, and leaves nothing behind but the others' tokens."""

import pytest

from learnvllm.architecture.request import RequestStatus
from tests.scheduling.fake_runner import SchedulerLoop, assert_oracle, make_config, prompt_of

ABORTED = RequestStatus.FINISHED_ABORTED


def make_loop(policy: str = "fcfs", **options) -> SchedulerLoop:
    return SchedulerLoop(make_config(policy=policy, **options))


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_abort_while_waiting(policy: str) -> None:
    loop = make_loop(policy, max_num_seqs=1)
    for i, name in enumerate("abc"):
        loop.add(name, prompt_of(5, i))
    loop.step()
    assert loop.scheduler.finish_requests(["b"], ABORTED) == [("b", 0)]
    assert not loop.scheduler.has_finished_requests()  # the workers never knew it
    loop.run()
    assert_oracle(loop, {"a": prompt_of(5, 0), "c": prompt_of(5, 2)}, 4)


def test_abort_in_the_middle_of_a_prompt() -> None:
    loop = make_loop(max_num_batched_tokens=4)
    loop.add("a", prompt_of(20, 1))
    loop.add("b", prompt_of(6, 2))
    loop.step()
    loop.scheduler.finish_requests("a", ABORTED)
    assert loop.scheduler.finished_req_ids == {"a"}
    loop.run()
    assert_oracle(loop, {"b": prompt_of(6, 2)}, 4)


def test_abort_while_preempted() -> None:
    loop = make_loop(num_blocks=6, block_size=4)
    loop.add("a", prompt_of(8, 1), max_tokens=10)
    loop.add("b", prompt_of(8, 2), max_tokens=10)
    while not loop.num_preemptions:
        loop.step()
    loop.scheduler.finish_requests("b", ABORTED)
    loop.run()
    assert_oracle(loop, {"a": prompt_of(8, 1)}, 10)


def test_aborting_twice_or_nobody_is_harmless() -> None:
    loop = make_loop()
    loop.add("a", [1])
    loop.step()
    assert loop.scheduler.finish_requests(["a", "a", "unknown"], ABORTED) == [("a", 0)]
    assert loop.scheduler.finish_requests("a", ABORTED) == []
    loop.run()


def test_aborting_after_the_end_is_harmless() -> None:
    loop = make_loop()
    loop.add("a", [1], max_tokens=1)
    loop.run()
    assert loop.scheduler.finish_requests("a", ABORTED) == []


def test_aborting_everybody_frees_everything() -> None:
    loop = make_loop(max_num_seqs=3, num_blocks=12)
    for i in range(8):
        loop.add(f"r{i}", prompt_of(9, i), client_index=i % 2)
    loop.step()
    ended = loop.scheduler.finish_requests([f"r{i}" for i in range(8)], ABORTED)
    assert ended == [(f"r{i}", i % 2) for i in range(8)]
    assert not loop.scheduler.has_unfinished_requests()
    assert loop.scheduler.kv_cache_manager.usage == 0
    loop.run()


def test_an_abort_gives_blocks_to_whoever_waits() -> None:
    loop = make_loop(num_blocks=6, block_size=4)
    loop.add("a", prompt_of(16, 1), max_tokens=4)
    loop.step()
    loop.add("b", prompt_of(16, 2), max_tokens=4)
    loop.step()
    assert loop.scheduler.get_request_counts() == (1, 1)
    loop.scheduler.finish_requests("a", ABORTED)
    loop.run()
    assert_oracle(loop, {"b": prompt_of(16, 2)}, 4)


def test_only_a_final_status_ends_a_request() -> None:
    loop = make_loop()
    loop.add("a", [1])
    with pytest.raises(ValueError, match="not a final status"):
        loop.scheduler.finish_requests("a", RequestStatus.PREEMPTED)
