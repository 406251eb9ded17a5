"""Run a test script as several ranks of one process group, on this machine only."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_ranks(script: str, *arguments: str, ranks: int = 2, seconds: float = 900) -> None:
    """Start `tests/distributed/<script>` once per rank; fail with a rank's words."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error::UserWarning",
                str(ROOT / "tests" / "distributed" / script),
                *arguments,
            ],
            env={
                **os.environ,
                **shared,
                "RANK": str(rank),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": paths,
                "GLOO_SOCKET_IFNAME": "lo",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [worker.communicate(timeout=seconds)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for rank, (worker, output) in enumerate(zip(workers, outputs, strict=True)):
        assert worker.returncode == 0, f"rank {rank} failed:\n{output}"


def leave() -> None:
    """End a rank whose checks have passed, without the interpreter's own shutdown.

    Threads of torch's process groups may still be about then, and abort it: seen once in some
    hundred runs, on a busy machine.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
