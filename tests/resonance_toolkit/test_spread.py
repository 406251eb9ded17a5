import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest

from resonance_toolkit import provenance, spread

ITEMS = list(range(7))


def test_in_this_process_in_order_and_lazily():
    done = []
    results = spread(lambda i: done.append(i) or i * i, ITEMS)
    assert next(results) == (0, 0)
    assert done == [0]
    assert list(results) == [(i, i * i) for i in ITEMS[1:]]


def test_any_executor_gives_the_same():
    expected = [(i, -i) for i in ITEMS]
    spawned = get_context("spawn")
    with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(1, spawned) as processes:
        assert sorted(spread(int.__neg__, ITEMS, executor=threads)) == expected
        assert sorted(spread(int.__neg__, ITEMS, executor=processes)) == expected


def test_dask_gives_the_same():
    import distributed

    with distributed.Client(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as client:
        results = sorted(spread(int.__neg__, ITEMS, executor=client.get_executor()))
    assert results == [(i, -i) for i in ITEMS]


def test_a_failure_cancels_what_has_not_started():
    started = []

    def work(i):
        started.append(i)
        if i == 0:
            raise RuntimeError("first")
        time.sleep(0.01)

    with ThreadPoolExecutor(1) as threads, pytest.raises(RuntimeError, match="first"):
        list(spread(work, ITEMS * 50, executor=threads))
    assert len(started) < 50


def test_not_an_executor():
    with pytest.raises(TypeError, match=r"`executor`: expected .* got str"):
        spread(abs, ITEMS, executor="pool")


def test_no_bar_where_there_is_no_terminal(capfd):
    list(spread(abs, ITEMS))
    assert capfd.readouterr() == ("", "")


def test_provenance_has_only_what_netcdf_takes():
    attrs = provenance("x", None, a=None, b=True, c=[1, "d"], d={"k": 2.0}, e=abs, f=3.5, g=set())
    assert {type(v) for v in attrs.values()} <= {str, int, float}
    assert (attrs["a"], attrs["b"], attrs["c"], attrs["d"], attrs["e"]) == (
        "none",
        1,
        "1, d",
        "k: 2.0",
        "abs",
    )
