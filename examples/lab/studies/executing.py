"""Where many runs are made: in this process, in several, or on a cluster."""

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import torch


@contextmanager
def executing(args: argparse.Namespace) -> Iterator[Executor | None]:
    """Start the executor that `--processes` or `--dask` ask for; None works in this process.

    Dask's workers need the toolkit, this folder on their PYTHONPATH, one thread each, and the data
    under the same name.
    """
    if args.processes:
        # By itself torch would give every process a thread for each core.
        threads = max((os.cpu_count() or 1) // args.processes, 1)
        with ProcessPoolExecutor(
            args.processes, get_context("spawn"), torch.set_num_threads, (threads,)
        ) as pool:
            yield pool

    elif args.dask:
        from distributed import Client

        with Client(args.dask) as client, client.get_executor(pure=False) as executor:
            yield executor

    else:
        yield None
