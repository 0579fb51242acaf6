"""BLAS has the threads it had: whoever calls the fast layer, from how many threads, whatever is raised in between.

Each test runs in a process of its own, which is ended when it takes too long.
"""

import subprocess
import sys
import textwrap
import threading
import types
from pathlib import Path

import pytest

from mha_tutorial.fast import threads

SECONDS = 60
NO_FORK = pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")

PROLOGUE = """
import faulthandler, os, signal, sys, threading, time
faulthandler.dump_traceback_later({seconds}, exit=True)
import numpy as np
from threadpoolctl import ThreadpoolController, threadpool_limits
from mha_tutorial import FastMultiHeadAttention, RowWeights
from mha_tutorial.fast import threads
from mha_tutorial.fast.plan import Block

BLAS = ThreadpoolController().select(user_api="blas")
def set_blas(number):
    for library in BLAS.lib_controllers:
        library.set_num_threads(number)
        getattr(library, "clear_controlling_thread", lambda: None)()  # other threads may set it too

set_blas(3)  # whatever the machine has

def blas():
    return {{library.num_threads for library in BLAS.lib_controllers}}

rng = np.random.default_rng(0)
weights, x = RowWeights.random(rng, 32, h=4), rng.normal(size=(2, 90, 32))
layer, insisting = (FastMultiHeadAttention(weights, threads=number, block=Block(tiny=0)) for number in (None, 2))

def watching(seen):
    # an exponential that notes the threads of BLAS whenever a tile is computed
    def exponential(scores, out=None):
        if out is not None:
            seen.append(blas())
        return np.exp(scores, out=out)
    return exponential

def both_ways(layer=layer):
    output, backward = layer.vjp(x)
    return backward(output)

def run(*works):
    callers = [threading.Thread(target=work) for work in works]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
"""


def in_a_process(code: str) -> None:
    code = PROLOGUE.format(seconds=SECONDS) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=SECONDS + 15,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_call_holds_blas_to_one_thread_and_gives_it_back():
    in_a_process("""
        seen = []
        layer = FastMultiHeadAttention(weights, block=Block(tiny=0), exponential=watching(seen))
        layer(x)
        both_ways(layer)
        assert seen and all(threads == {1} for threads in seen), seen
        assert blas() == {3}
    """)


def test_few_tokens_and_one_thread_leave_blas_alone():
    in_a_process("""
        for tokens, number in ((x[:, :5], None), (x, 1)):
            seen = []
            FastMultiHeadAttention(weights, threads=number, exponential=watching(seen))(tokens)
            assert seen and all(threads == {3} for threads in seen), seen
    """)


def test_a_limit_of_one_is_left_alone():
    in_a_process("""
        with threadpool_limits(1, user_api="blas"):
            layer(x)
            insisting(x)
            both_ways()
            assert blas() == {1}
        assert blas() == {3}
    """)


@pytest.mark.parametrize("chosen", ["layer", "insisting"])
def test_many_threads_at_once(chosen):
    in_a_process(f"""
        expected = layer.plain(x)
        def work():
            for _ in range(20):
                np.testing.assert_allclose({chosen}(x), expected, atol=1e-12)
                both_ways({chosen})
        run(*[work] * 5)
        assert blas() == {{3}}
    """)


def test_the_way_back_on_another_thread():
    in_a_process("""
        ways = [layer.vjp(x), insisting.vjp(x)]
        run(*[lambda way=way: way[1](way[0]) for way in ways for _ in range(5)])
        assert blas() == {3}
    """)


def test_another_threads_limit_stays_while_this_one_calls():
    """The limit begins and ends at any moment of a call."""
    in_a_process("""
        over, wrong = threading.Event(), []
        def limited():
            while not over.is_set():
                for limit in (1, 2):
                    with threadpool_limits(limit, user_api="blas"):
                        for _ in range(20):
                            time.sleep(1e-4)
                            if blas() != {limit}:
                                wrong.append((limit, blas()))
        other = threading.Thread(target=limited, daemon=True)
        other.start()
        for _ in range(100):
            layer(x)
            both_ways()
        over.set()
        other.join()
        assert not wrong, wrong[:5]
        assert blas() == {3}
    """)


def test_other_threads_can_limit_blas_after_a_call_and_the_first_may_leave_first():
    in_a_process("""
        layer(x)
        both_ways(insisting)
        def limited():
            with threadpool_limits(2, user_api="blas"):
                seen.append(blas())
        seen = []
        run(limited)
        assert seen == [{2}] and blas() == {3}, seen
        first, second = threads.OneBlasThread(), threads.OneBlasThread()
        first.take(insist=True)
        run(lambda: second.take(insist=True))
        first.give_back()
        run(second.give_back)
        assert blas() == {3}
    """)


def test_a_thread_that_waits_in_a_pool_is_no_reason_to_be_slow():
    in_a_process("""
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(2)
        pool.submit(time.sleep, 0).result()
        timer = threading.Timer(30, print)
        timer.daemon = True
        timer.start()
        while threads.blas_threads() == 1:  # until they wait
            time.sleep(1e-3)
        assert threads.blas_threads() == 3
        held = threading.Event()
        working = pool.submit(lambda: held.wait())
        time.sleep(0.1)
        assert threads.blas_threads() == 1
        held.set()
    """)


def test_what_another_thread_sets_meanwhile_stays():
    in_a_process("""
        hold = threads.OneBlasThread()
        assert hold.take(insist=True) == 3
        set_blas(2)
        hold.give_back()
        assert blas() == {2}
    """)


def test_the_last_of_several_gives_back():
    in_a_process("""
        first, second = threads.OneBlasThread(), threads.OneBlasThread()
        assert first.take(insist=True) == second.take(insist=True) == 3
        first.give_back()
        first.give_back()
        assert blas() == {1}
        second.give_back()
        assert blas() == {3}
    """)


def test_an_error_gives_back():
    in_a_process("""
        def failing(x, out=None):
            if out is not None:
                raise ZeroDivisionError
            return np.exp(x)
        for number in (None, 2):
            one = FastMultiHeadAttention(weights, threads=number, block=Block(tiny=0), exponential=failing)
            for call in (one, one.vjp):
                try:
                    call(x)
                except ZeroDivisionError:
                    assert blas() == {3}
                else:
                    raise AssertionError
    """)


@NO_FORK
def test_an_interrupt_at_any_moment_gives_back():
    in_a_process("""
        caught = 0
        for turn in range(300):
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + 3e-5 * turn)
                insisting(x)
                both_ways(insisting)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                caught += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert blas() == {3}, turn
        assert caught > 30, caught
        np.testing.assert_allclose(layer(x), layer.plain(x), atol=1e-12)
    """)


def test_an_interrupt_inside_giving_back_is_made_up_for():
    in_a_process("""
        give_back, tries = threads.OneBlasThread.give_back, []
        def interrupted(self):
            tries.append(self)
            if len(tries) == 1:
                raise KeyboardInterrupt
            give_back(self)
        threads.OneBlasThread.give_back = interrupted
        try:
            insisting(x)
        except KeyboardInterrupt:
            pass
        assert len(tries) == 2 and blas() == {3}
    """)


def test_what_an_interrupted_call_left_behind_is_made_up_for_by_the_next():
    in_a_process("""
        lost = threads.OneBlasThread()
        lost.take(insist=True)
        threads.OneBlasThread._holders.discard(lost)  # as if giving back had stopped here
        assert blas() == {1}
        insisting(x)
        assert blas() == {3}
    """)


@NO_FORK
def test_a_forked_process_has_threads_of_its_own():
    in_a_process("""
        layer(x)
        for one in (layer, insisting):
            child = os.fork()
            if not child:
                both_ways(one)
                os._exit(0 if blas() == {3} else 1)
            assert os.waitpid(child, 0)[1] == 0
    """)


@NO_FORK
def test_a_process_forked_during_a_call_has_the_threads_that_were():
    in_a_process("""
        hold = threads.OneBlasThread()
        hold.take(insist=True)
        child = os.fork()
        if not child:
            right = blas() == {3}
            hold.give_back()
            layer(x)
            os._exit(0 if right and blas() == {3} else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert blas() == {1}
        hold.give_back()
        assert blas() == {3}
    """)


def test_an_error_on_any_thread_is_raised_and_ends_the_work():
    in_a_process("""
        for several in (1, 2, 3):
            begun = []
            def work(part):
                begun.append(part)
                if part == 3:
                    raise ZeroDivisionError
                time.sleep(1e-3)
            try:
                threads.parallel_map(lambda: work, range(1000), several)
            except ZeroDivisionError:
                assert len(begun) < 900
            else:
                raise AssertionError
    """)


def test_every_part_is_done_once():
    in_a_process("""
        for several in (1, 2, 5):
            done = []
            threads.parallel_map(lambda: done.append, range(500), several)
            assert sorted(done) == list(range(500))
        run(*[lambda: threads.parallel_map(lambda: done.append, range(500), 3)] * 4)
        assert sorted(done) == sorted([*range(500)] * 5)
    """)


def test_without_threadpoolctl_blas_keeps_its_threads():
    in_a_process("""
        sys.modules["threadpoolctl"] = None
        threads._blas_libraries.cache_clear()
        assert threads.blas_threads() == threads.OneBlasThread().take(insist=True) == 1
        np.testing.assert_allclose(layer(x), layer.plain(x), atol=1e-12)
        np.testing.assert_allclose(insisting(x), layer.plain(x), atol=1e-12)
        both_ways()
        assert blas() == {3}
    """)


# --- the same in this process, on a BLAS that only counts -------------------------------------------------------


class Library:
    """What threadpoolctl says of a library."""

    def __init__(self, threads):
        self.num_threads = threads

    def set_num_threads(self, threads):
        self.num_threads = threads


@pytest.fixture
def library(monkeypatch):
    library = Library(5)
    monkeypatch.setattr(threads, "_blas_libraries", lambda: [library])
    return library


@pytest.mark.parametrize("insist", [False, True])
def test_taken_once_and_given_back_by_the_last(insist, library, monkeypatch):
    monkeypatch.setattr(threads, "_alone", lambda: True)
    first, second = threads.OneBlasThread(), threads.OneBlasThread()
    assert first.take(insist) == second.take(insist) == 5
    first.give_back()
    assert library.num_threads == 1
    second.give_back()
    assert library.num_threads == 5


def test_not_taken_while_another_thread_works(library, monkeypatch):
    monkeypatch.setattr(threads, "_alone", lambda: False)
    hold = threads.OneBlasThread()
    assert hold.take() == threads.blas_threads() == 1
    assert library.num_threads == 5
    hold.give_back()
    assert threads.with_one_blas_thread(lambda several: (several, library.num_threads), 3) == (3, 1)
    assert library.num_threads == 5
    library.num_threads = 1
    assert threads.with_one_blas_thread(lambda several: several, 3) == 3


def test_what_was_set_meanwhile_is_kept(library):
    hold = threads.OneBlasThread()
    hold.take(insist=True)
    library.num_threads = 2
    hold.give_back()
    assert library.num_threads == 2


def test_a_second_try_at_giving_back(library, monkeypatch):
    give_back, tries = threads.OneBlasThread.give_back, []

    def interrupted(self):
        tries.append(self)
        if len(tries) == 1:
            raise KeyboardInterrupt
        give_back(self)

    monkeypatch.setattr(threads.OneBlasThread, "give_back", interrupted)
    with pytest.raises(KeyboardInterrupt):
        threads.with_one_blas_thread(lambda _: None, 2)
    assert library.num_threads == 5


def test_after_a_fork_nobody_holds_anything(library):
    threads.OneBlasThread().take(insist=True)
    threads._after_fork()
    assert library.num_threads == 5
    done = []
    threads.parallel_map(lambda: done.append, range(9), 2)
    assert sorted(done) == list(range(9))


def test_where_no_thread_can_be_started_this_one_does_the_work(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    threads._after_fork()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    threads.parallel_map(lambda: done.append, range(9), 3)
    assert done == list(range(9))
    threads._after_fork()


@pytest.mark.parametrize("several", [1, 2])
def test_the_error_of_a_part_is_raised(several):
    with pytest.raises(ZeroDivisionError):
        threads.parallel_map(lambda: lambda part: 1 / part, [1, 0, 2], several)


def test_the_error_of_a_helper_is_raised():
    """It begins, and this thread waits for it."""
    began = threading.Event()

    def make_worker():
        if threading.current_thread().name.startswith(threads.NAME):
            began.set()
            raise ZeroDivisionError
        return lambda part: began.wait(30)

    with pytest.raises(ZeroDivisionError):
        threads.parallel_map(make_worker, [1, 2], 2)


def test_a_part_that_another_thread_takes_first(monkeypatch):
    class Hurried(threads.deque):
        def popleft(self):
            super().clear()
            return super().popleft()

    monkeypatch.setattr(threads, "deque", Hurried)
    threads.parallel_map(lambda: pytest.fail, [1], 1)


def test_a_helper_begins_once():
    done = []
    helper = threads.Helper(lambda: done.append(1))
    helper()
    assert helper.wait() is None
    helper()
    late = threads.Helper(lambda: done.append(2))
    assert late.wait() is None
    late()
    assert done == [1]


def frame_of(name, module, back=None):
    return types.SimpleNamespace(
        f_code=types.SimpleNamespace(co_name=name), f_globals={"__name__": module}, f_back=back
    )


@pytest.mark.usefixtures("own_messages")  # what stands for a frame here is none
def test_a_thread_waits_if_nothing_but_waiting_is_on_its_stack():
    bottom = frame_of("run", "threading")
    assert threads._waits(frame_of("wait", "threading", bottom))
    assert threads._waits(frame_of("_worker", "concurrent.futures.thread", bottom))
    assert not threads._waits(frame_of("wait", "threading", frame_of("mine", "__main__", bottom)))
    assert not threads._waits(frame_of("run", "threading", bottom))
    assert not threads._waits(None)


def test_alone_but_for_those_that_wait_or_keep_house(monkeypatch):
    over = threading.Event()
    other = threading.Thread(target=lambda: over.wait(30), daemon=True)
    other.start()
    frames, idents = sys._current_frames, {threading.get_ident(), other.ident}  # a runner of tests has its own
    monkeypatch.setattr(sys, "_current_frames", lambda: {k: frame for k, frame in frames().items() if k in idents})
    assert not threads._alone()
    monkeypatch.setattr(threads, "_HOUSEKEEPERS", {other})
    assert threads._alone()
    over.set()
    other.join()


def test_no_library_where_threadpoolctl_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    threads._blas_libraries.cache_clear()
    try:
        assert threads.blas_threads() == threads.OneBlasThread().take(insist=True) == 1
    finally:
        threads._blas_libraries.cache_clear()
    monkeypatch.undo()
    assert threads._blas_libraries()
