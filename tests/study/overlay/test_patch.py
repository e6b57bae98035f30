"""What the code does once it is in place: classes keep their identity, names mean the right things."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from learnvllm.study.overlay_patch import runs_in_pieces
from tests.study.overlay.conftest import Learner


def test_members_of_several_exercises_meet_on_the_reference_class(learner: Learner) -> None:
    learner.solve("token_budget")
    learner.solve("preemption")
    out = learner.python(
        """
        from learnvllm.scheduling import async_scheduler, scheduler
        S = scheduler.Scheduler
        home = lambda function: function.__code__.co_filename.split("/")[-2]
        print(home(S._get_num_new_tokens), home(S._preempt), home(S.schedule), S.__module__)
        print(async_scheduler.Scheduler is S, S in async_scheduler.AsyncScheduler.__mro__)
        import learnvllm_exercises.day03_scheduling.token_budget as mine
        print(mine.Scheduler is S, mine.__name__, mine.__file__.split("/")[-1])
        """,
        "token_budget,scheduling.preemption",
    )
    assert out.split() == [
        "token_budget",
        "preemption",
        "scheduling",
        "learnvllm.scheduling.scheduler",
        "True",
        "True",
        "True",
        "learnvllm_exercises.day03_scheduling.token_budget",
        "exercise.py",
    ]


def test_zero_argument_super_finds_the_reference_class(learner: Learner) -> None:
    learner.solve("one_step_ahead")
    learner.solve(
        "sliding_window",
        ("        self.sliding_window = spec.sliding_window\n",
         "        self.sliding_window = spec.sliding_window\n        self.mine = super()\n"),
    )  # fmt: skip
    out = learner.python(
        """
        from learnvllm.kv_cache.block_pool import BlockPool
        from learnvllm.kv_cache.interface import SlidingWindowSpec
        from learnvllm.kv_cache.single_type_manager import SlidingWindowManager, make_manager
        spec = SlidingWindowSpec(4, num_kv_heads=1, head_dim=8, dtype="float32", sliding_window=7)
        manager = make_manager(spec, BlockPool(8, True), 0, 16)
        print(type(manager) is manager.mine.__thisclass__ is SlidingWindowManager)
        """,
        "sliding_window,one_step_ahead",
    )
    assert out.split() == ["True"]


def test_a_function_goes_to_theirs_wherever_it_is_held(learner: Learner) -> None:
    """In tables, default arguments and modules that had imported it before."""
    learner.solve(
        "block_hashing", ('return ("cache_salt", request.cache_salt)', 'return ("mine", request.cache_salt)')
    )
    out = learner.python(
        """
        import inspect, pickle
        from learnvllm.kv_cache import hashing
        from learnvllm.kv_cache.hashing import cache_salt_key, hash_block_tokens
        before = hashing.make_block_hasher
        from learnvllm.study import overlay
        overlay.activate(["block_hashing"])
        from types import SimpleNamespace
        request = SimpleNamespace(cache_salt="s", block_hashes=[], all_token_ids=[1, 2, 3, 4])
        print(cache_salt_key(request, 0, 4), hashing.DEFAULT_EXTRA_KEYS[0](request, 0, 4))
        expected = hash_block_tokens(hashing.NONE_HASH, [1, 2, 3, 4], [("mine", "s")])
        print(before(4)(request) == [expected])
        print(pickle.loads(pickle.dumps(before)) is hashing.make_block_hasher)
        print(list(inspect.signature(before).parameters))
        """
    )
    assert out.splitlines() == [
        "('mine', 's') ('mine', 's')",
        "True",
        "True",
        "['block_size', 'seed', 'extra_key_sources']",
    ]


def test_a_class_of_another_build_is_exchanged_everywhere(learner: Learner) -> None:
    learner.solve(
        "shortest_first",
        ("class ShortestFirstRequestQueue(RequestQueue):\n",
         "class ShortestFirstRequestQueue(RequestQueue):\n    mine: bool = True\n"),
    )  # fmt: skip
    out = learner.python(
        """
        import pickle
        from learnvllm.scheduling.request_queue import ShortestFirstRequestQueue as before
        from learnvllm.study import overlay
        overlay.activate(["shortest_first"])
        from learnvllm.scheduling import request_queue
        made = request_queue.create_request_queue("shortest")
        print(type(made) is request_queue.ShortestFirstRequestQueue, made.mine, type(made) is before)
        print(type(made).__module__, pickle.loads(pickle.dumps(type(made))) is type(made))
        """
    )
    assert out.split() == [
        "True",
        "True",
        "False",
        "learnvllm_exercises.day03_scheduling.shortest_first",
        "True",
    ]


def test_a_property_an_override_left_out_and_an_extra_helper(learner: Learner) -> None:
    learner.solve(
        "segmented_eviction",
        ("return self._probation.num_free_blocks + self._protected.num_free_blocks", "return self._count()"),
        ("    def append(self", "    def _count(self) -> int:\n        return 7\n\n    def append(self"),
    )
    text = learner.solve("one_step_ahead").path.read_text()
    start, end = text.index("    def _get_num_new_tokens"), text.index("    def _update_after_schedule")
    learner.write("one_step_ahead", text[:start] + text[end:])
    out = learner.python(
        """
        from learnvllm.kv_cache.eviction import SegmentedFreeQueue
        from learnvllm.scheduling.async_scheduler import AsyncScheduler, Scheduler
        print(SegmentedFreeQueue().num_free_blocks,
              AsyncScheduler._get_num_new_tokens is Scheduler._get_num_new_tokens)
        """,
        "segmented_eviction,one_step_ahead",
    )
    assert out.split() == ["7", "True"]


def test_their_objects_pickle_into_a_process_that_has_imported_nothing(learner: Learner) -> None:
    learner.solve(
        "free_queue",
        ("class FreeKVCacheBlockQueue:\n", "class Mark: ...\n\n\nclass FreeKVCacheBlockQueue:\n"),
    )
    out = learner.python(
        """
        import pickle, subprocess, sys
        from learnvllm.kv_cache.block_pool import KVCacheBlock
        from learnvllm_exercises.day04_kv_cache.free_queue import Mark
        data = pickle.dumps([Mark(), KVCacheBlock(3)])
        code = "import pickle, sys, learnvllm; print(*pickle.load(sys.stdin.buffer))"
        command = [sys.executable, "-c", code]
        print(subprocess.run(command, input=data, capture_output=True, check=True).stdout.decode())
        """,
        "free_queue",
    )
    assert out.startswith("<learnvllm_exercises.day04_kv_cache.free_queue.Mark object")
    assert "KVCacheBlock(block_id=3" in out


def test_a_stand_in_is_only_for_what_runs_at_once() -> None:
    async def waits() -> None: ...

    async def waits_and_yields() -> AsyncIterator[int]:
        yield 1

    def yields() -> Iterator[int]:
        yield 1

    assert all(map(runs_in_pieces, (waits, waits_and_yields, yields)))
    assert not runs_in_pieces(test_a_stand_in_is_only_for_what_runs_at_once)


def test_without_the_variable_nothing_is_loaded(learner: Learner) -> None:
    code = "import sys, learnvllm; print([m for m in sys.modules if m.startswith('learnvllm.')])"
    assert learner.python(code).strip() == "[]"


def test_a_file_that_ends_the_process_stands_last_in_what_was_told(learner: Learner) -> None:
    """One that never ends looks the same, until somebody stops it."""
    learner.solve("free_queue")
    learner.solve("preemption", ("import bisect\n", "import bisect\nimport os\n\nos._exit(4)\n"))
    done = learner.cli("generate", "--model", "none", "--mine", "free_queue,preemption", "Hello")
    assert done.returncode == 4
    assert done.stderr.startswith("Importing your code: "), done.stderr
    assert done.stderr.endswith(" preemption"), done.stderr
    learner.solve("preemption")
    done = learner.cli("generate", "--model", "none", "--mine", "free_queue,preemption", "Hello")
    assert "Importing your code: free_queue preemption\nYour code runs" in done.stderr
