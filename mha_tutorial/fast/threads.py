"""Work shared among threads, with the matrix products inside kept to one thread each."""

import contextvars
import functools
import math
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from types import FrameType
from typing import Any, ClassVar

import numpy as np
from numpy import ndarray as Array

from .._sizes import slices

NAME = "mha_tutorial"  # of the threads started here

# Daemon threads that are there before anybody can use this package keep house, as those of a notebook's kernel do.
_HOUSEKEEPERS = weakref.WeakSet(thread for thread in threading.enumerate() if thread.daemon)


class OneBlasThread:
    """From `take` until `give_back` a matrix product runs on the one thread that asks for it.

    The number of threads of BLAS belongs to the whole process, and the process has nothing finer. So it is
    changed as seldom as possible: never where it is one already, and, unless the caller insists, never while
    another thread of the program does something, since it may have set a limit of its own or be about to. Of
    several that hold it the first makes the change and the last takes it back, if nobody else has changed it
    in between.

    Both methods may be interrupted anywhere and called again: what is left undone then, `give_back` does, and
    so does whoever takes it next. Without threadpoolctl nothing can be set, and BLAS goes on using its own
    threads.

    Examples
    --------
    >>> hold = OneBlasThread()
    >>> try:
    ...     threads = hold.take()  # so many may share the work now
    ... finally:
    ...     hold.give_back()
    """

    _lock: ClassVar = threading.RLock()
    _holders: ClassVar[set["OneBlasThread"]] = set()
    _had: ClassVar[dict] = {}  # the libraries that were changed, and what they had

    def take(self, insist: bool = False) -> int:
        """Hold BLAS to one thread, and say how many it would have used; one where it was left alone."""
        libraries = _blas_libraries()
        if not libraries or not (insist or _alone()):
            return 1
        with self._lock:
            self._holders.add(self)
            if len(self._holders) == 1:
                self._restore()  # what an interrupted call has left behind
                found = {library: library.num_threads for library in libraries}
                self._had.update({library: threads for library, threads in found.items() if threads > 1})
                for library in self._had:
                    _set_threads(library, 1)
            return max(self._had.values(), default=1)

    def give_back(self) -> None:
        """Let BLAS have what it had, unless somebody else still holds it."""
        with self._lock:
            self._holders.discard(self)
            if not self._holders:
                self._restore()

    @classmethod
    def _restore(cls) -> None:
        while cls._had:
            library, threads = next(iter(cls._had.items()))
            if library.num_threads == 1:
                _set_threads(library, threads)
            cls._had.pop(library, None)

    @classmethod
    def _after_fork(cls) -> None:
        """Only the thread that forked goes on in the child: nobody holds anything there."""
        cls._lock = threading.RLock()
        cls._holders.clear()
        cls._restore()


def with_one_blas_thread(work: Callable[[int], Any], threads: int | None) -> Any:
    """Call a work with the number of threads that may share it, while BLAS keeps to the thread that asks.

    Examples
    --------
    >>> with_one_blas_thread(lambda threads: threads, 1)
    1
    """
    if threads == 1:
        return work(1)
    hold = OneBlasThread()
    try:
        available = hold.take(insist=threads is not None)
        return work(threads or available)
    finally:
        try:
            hold.give_back()
        except BaseException:  # an interrupt that came before it was done
            hold.give_back()
            raise


def blas_threads() -> int:
    """How many threads may share a work now: those of BLAS, unless others need it as it is."""
    return max((library.num_threads for library in _blas_libraries()), default=1) if _alone() else 1


def parallel_map(make_worker: Callable[[], Callable], parts: Iterable, threads: int) -> None:
    """Do each part of a work, on several threads if there are several; the first error is raised.

    Every thread takes the next part when it has done one. What `numpy.errstate` says around it holds inside.

    Parameters
    ----------
    make_worker
        Called once on every thread: it returns what does a part, and may keep memory for all of them.

    Examples
    --------
    >>> parallel_map(lambda: print, ["once"], threads=2)
    once
    """
    left = deque(parts)

    def some() -> None:
        try:
            work = make_worker()
            while left:
                try:
                    part = left.popleft()
                except IndexError:  # another thread was faster
                    return
                work(part)
        except BaseException:
            left.clear()  # nobody begins another part
            raise

    helpers = [Helper(some) for _ in range(min(threads, len(left)) - 1)]
    try:
        _start_threads(len(helpers))
        for helper in helpers:
            _waiting.put(helper)
        some()
    finally:
        left.clear()
        errors = [helper.wait() for helper in helpers]
    for error in filter(None, errors):
        raise error


def parallel_matmul(A: Array, B: Array, threads: int) -> Array:
    """A matrix product, some of the rows on every thread.

    Examples
    --------
    >>> parallel_matmul(np.eye(5), np.ones((5, 2)), threads=2).shape
    (5, 2)
    """
    product = np.empty((len(A), B.shape[1]), A.dtype)
    parallel_map(
        lambda: lambda some: np.matmul(A[some], B, out=product[some]),
        slices(len(A), math.ceil(len(A) / threads)),
        threads,
    )
    return product


class Helper:
    """A work that a thread of the pool does, if one comes to it in time.

    Made of queues alone, which an interrupt leaves in order; `concurrent.futures` may be left with a lock held.
    """

    def __init__(self, work: Callable[[], None]):
        self._work, self._context = work, contextvars.copy_context()
        self._not_begun = deque([True])
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def __call__(self) -> None:
        if self._begin():
            error = None
            try:
                self._context.run(self._work)
            except BaseException as raised:  # the caller raises it
                error = raised
            self._ended.put(error)

    def wait(self) -> BaseException | None:
        """Wait until it has ended, if it has begun, and return its error; else it will not begin any more."""
        return None if self._begin() else self._ended.get()

    def _begin(self) -> bool:
        """Whether who asks is the first."""
        try:
            return self._not_begun.popleft()
        except IndexError:
            return False


_waiting: SimpleQueue[Helper] = SimpleQueue()
_started: list[threading.Thread] = []


def _start_threads(number: int) -> None:
    """Start threads until there are so many; they stay, since starting one takes longer than many a job."""
    while len(_started) < number:
        thread = threading.Thread(target=_serve, args=(_waiting,), daemon=True, name=f"{NAME}-{len(_started)}")
        _started.append(thread)
        try:
            thread.start()
        except RuntimeError:  # there can be no more: those that are there do the work
            return


def _serve(waiting: SimpleQueue) -> None:
    while True:
        waiting.get()()


# Whether BLAS may be held: a limit belongs to the whole process, so another thread that runs code of anybody's
# might be multiplying matrices, or be inside a limit of its own, and must find BLAS as it left it. To count the
# threads is not enough: a program that has once used an executor or a timer keeps threads that only wait, and would
# be slow for ever. Nor does Python say which threads are idle. So the stack of each is looked at: one that consists
# of the standard library's waiting alone belongs to a thread that does nothing. A thread that stops waiting a
# moment later may find the limit; what it sets then stays, since `give_back` leaves alone what is not one.
def _alone() -> bool:
    """Whether no other thread does anything: they keep house, or wait for work in a pool or for a timer."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    idle = {threading.current_thread(), *_started, *_HOUSEKEEPERS}
    return all(threads.get(ident) in idle or _waits(frame) for ident, frame in sys._current_frames().items())


def _waits(frame: FrameType | None) -> bool:
    """Whether a thread waits and has no code of anybody's on its stack."""
    if frame is None or frame.f_code.co_name not in ("_worker", "wait"):
        return False
    while frame is not None:
        if frame.f_globals.get("__name__") not in ("threading", "concurrent.futures.thread"):
            return False
        frame = frame.f_back
    return True


@functools.cache
def _blas_libraries() -> list:
    """What sets the number of threads of NumPy's matrix products; nothing where threadpoolctl is missing."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return []
    return ThreadpoolController().select(user_api="blas").lib_controllers


def _set_threads(library: Any, threads: int) -> None:
    """Set the number of threads of a library, and leave others free to do so.

    Threadpoolctl lets the thread that has set it first go on, and no other, until it says that it is done. Here
    one thread may set it and another take it back.
    """
    library.set_num_threads(threads)
    getattr(library, "clear_controlling_thread", lambda: None)()


def _after_fork() -> None:
    """A forked process has none of the threads: it starts its own."""
    global _waiting
    _waiting = SimpleQueue()
    _started.clear()
    OneBlasThread._after_fork()


getattr(os, "register_at_fork", lambda **_: None)(after_in_child=_after_fork)
