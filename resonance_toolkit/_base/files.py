"""Writing files so that they survive accidents: kills, power cuts, full disks, a second writer.

`write_atomically` puts each file in the place of the old one in one step. Whoever reads a file,
adds to it and writes it again does so inside of `locking`. `check_writable` finds out before hours
of work whether there is a place for their result.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

Writer = Callable[[Path], object]

_PREFIX = ".resonance-"
_SUFFIX = ".partial"

# Seconds after which a temporary file has no writer any more: none takes a day for one file.
_ORPHANED_AFTER = 24 * 3600.0

# Seconds to wait for another writer. It takes milliseconds, unless it was stopped while writing;
# then it must not hold up everybody else.
_PATIENCE = 10.0


def write_atomically(writers: Mapping[Path, Writer]) -> None:
    """Write all files or none: each to a temporary neighbour first, then all are renamed.

    A kill, a full disk or a power cut leaves every file as it was or as it should be. Neighbours
    that a killed process has left in the same folder are removed after a day.

    Args:
        writers: By path, what writes the file; it is given another path, of an empty file.

    Raises:
        OSError: If a file cannot be written; it names the file.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "note.txt")
        ...     write_atomically({path: lambda path: path.write_text("whole")})
        ...     print(path.read_text())
        whole
    """
    for folder in {path.parent for path in writers}:
        _remove_orphans(folder)

    with ExitStack() as stack:
        temporary_paths: dict[Path, Path] = {}
        for path, write in writers.items():
            with _naming(path):
                temporary_paths[path] = stack.enter_context(_temporary_neighbour(path))
                write(temporary_paths[path])
                _flush_to_disk(temporary_paths[path])

        for path, temporary_path in temporary_paths.items():
            with _naming(path):
                os.replace(temporary_path, path)

    # A rename is on the disk when its folder is.
    for folder in {path.parent for path in writers}:
        with suppress(OSError):  # Windows opens no folders
            _flush_to_disk(folder)


def tensor_writer(state: Any) -> Writer:
    """Return what writes a state as `torch.save` does, for `write_atomically`.

    It raises an OSError if there is no room, where torch tells of an unexpected position.
    """

    def write(path: Path) -> None:
        try:
            with path.open("wb") as file:
                torch.save(state, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                raise error.__context__ from error
            raise

    return write


def check_writable(argument: str, path: Path) -> None:
    """Find out before the work whether a file can be written.

    Args:
        argument: The name of the user's argument, for the error.
        path: Where it will be; what is there stays as it is.

    Raises:
        OSError: If there is no place for a file.

    Examples:
        >>> check_writable("checkpoint", Path("no such folder/plane.nc"))
        Traceback (most recent call last):
        FileNotFoundError: [Errno 2] `checkpoint`: cannot write ...: No such file or directory
    """
    try:
        with _temporary_neighbour(path) as temporary_path:
            temporary_path.write_bytes(b"\0")
    except OSError as error:
        words = f"`{argument}`: cannot write {str(path)!r}: {error.strerror}"
        raise OSError(error.errno, words) from error


@contextmanager
def locking(folder: Path) -> Iterator[None]:
    """Run the body while no other process does, of those that ask for the lock of a folder.

    A lock ends with its process, however that ends. Where there are no locks (Windows, some network
    drives) the body runs all the same.
    """
    with ExitStack() as stack:
        with suppress(ImportError, OSError):
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)  # which ends the lock as well

            patient_until = time.monotonic() + _PATIENCE
            while time.monotonic() < patient_until:
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.005)
        yield


@contextmanager
def _temporary_neighbour(path: Path) -> Iterator[Path]:
    # In the same folder, since a rename is atomic within one file system only; with a random name,
    # since several machines may write to a shared disk.
    temporary_path = path.with_name(f"{_PREFIX}{uuid4().hex}{_SUFFIX}")

    # Made here and by nobody else: what is there already, such as a link to another file, is no
    # place to write to.
    os.close(os.open(temporary_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield temporary_path
    finally:
        temporary_path.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file that was meant in an error that names its neighbour, or none."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        words = f"cannot write {str(path)!r}: {error.strerror}"
        raise OSError(error.errno, words) from error


def _flush_to_disk(path: Path) -> None:
    # Without it a power cut may leave the new name, and nothing under it.
    flags: Any = os.O_RDONLY if path.is_dir() else os.O_RDWR
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_orphans(folder: Path) -> None:
    too_old = time.time() - _ORPHANED_AFTER
    for path in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        # Another process may be faster, or may own it.
        with suppress(OSError):
            if path.stat(follow_symlinks=False).st_mtime < too_old:
                path.unlink()
