"""Work shared among threads, with the matrix products inside kept to one thread each."""

import contextvars
import functools
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor


class OneBlasThread:
    """While any thread is inside, a matrix product runs on the one thread that asked for it.

    The setting belongs to the process, so the first in makes it and the last out takes it back. Entering
    gives the number of threads that BLAS would have used, which is how many may now share the work. Without
    threadpoolctl nothing can be set: entering gives 1, and BLAS goes on using its own.

    Examples
    --------
    >>> with ONE_BLAS_THREAD as threads:
    ...     spread(abs, [-2, 3], 1)
    [2, 3]
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> int:
        blas = _blas()
        if blas is None:
            return 1
        with self._lock:
            if not self._inside:
                self._threads = max((library.num_threads for library in blas.lib_controllers), default=1)
                self._limit = blas.limit(limits=1)
            self._inside += 1
            return self._threads

    def __exit__(self, *error) -> None:
        if _blas() is None:
            return
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limit.restore_original_limits()


ONE_BLAS_THREAD = OneBlasThread()


def spread(work: Callable, parts: Iterable, threads: int) -> list:
    """Do each part of a work, on several threads if there are several; the first error is raised.

    What `numpy.errstate` says around it holds inside, on every thread.
    """
    if threads == 1:
        return list(map(work, parts))
    running = [_pool(threads).submit(contextvars.copy_context().run, work, part) for part in parts]
    return [part.result() for part in running]


@functools.cache
def _blas():
    """What sets the number of threads of NumPy's matrix products, or None where threadpoolctl is missing."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController().select(user_api="blas")


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that are started once, since that takes longer than many a piece of work."""
    return ThreadPoolExecutor(threads, thread_name_prefix="mha_tutorial")


# A forked process has a copy of the pool but none of its threads: it makes its own.
getattr(os, "register_at_fork", lambda **_: None)(after_in_child=_pool.cache_clear)
