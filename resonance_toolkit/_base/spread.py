from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from typing import TypeVar

from resonance_toolkit._base.progress import reporting

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    executor: Executor | None = None,
    label: str | None = "",
    unit: str = "item",
) -> Iterator[tuple[int, Result]]:
    """Do independent pieces of work, here or on an executor, and yield each as it is finished.

    Progress is shown as `showing_progress` says. When a piece fails, or the caller stops listening,
    whatever has not started is cancelled.

    Args:
        work: What to do with one item; picklable if the executor needs that.
        items: One per piece of work.
        executor: Any `concurrent.futures.Executor`: a process pool, Dask's
            `client.get_executor()`, mpi4py's. None works in this process, one by one.
        label: What is being done, in a word or two, for the progress shown; None shows none.
        unit: What one item is called there.

    Returns:
        Pairs `(index, result)`: in order without an executor, else as they finish.

    Examples:
        >>> sorted(spread(abs, [-3, 4]))
        [(0, 3), (1, 4)]
    """
    if executor is not None and not hasattr(executor, "submit"):
        raise TypeError(
            f"`executor`: expected a concurrent.futures.Executor, got {type(executor).__name__}"
        )

    results = _work_here(work, items) if executor is None else _submit(work, items, executor)
    if label is None:
        return results
    return _with_progress(results, len(items), label or "working", unit)


def _with_progress(
    results: Iterator[tuple[int, Result]], total: int, label: str, unit: str
) -> Iterator[tuple[int, Result]]:
    with reporting(label, unit=unit, total=total) as progress:
        for pair in results:
            progress.update()
            yield pair


def _work_here(
    work: Callable[[Item], Result], items: Sequence[Item]
) -> Iterator[tuple[int, Result]]:
    for index, item in enumerate(items):
        yield index, work(item)


def _submit(
    work: Callable[[Item], Result], items: Sequence[Item], executor: Executor
) -> Iterator[tuple[int, Result]]:
    futures = {executor.submit(work, item): index for index, item in enumerate(items)}

    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()
