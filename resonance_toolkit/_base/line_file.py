from collections.abc import Callable, Iterable
from pathlib import Path

from resonance_toolkit._base.files import check_writable, locking, write_atomically
from resonance_toolkit._base.processes import is_first_process


class LineFile:
    """A file that follows a record, line by line; of several processes, the first writes it.

    A line is handed to the operating system as soon as it is added, so that nothing is lost if the
    process is killed.

    Args:
        path: Where; nothing is written before the first line.

    Raises:
        ValueError: If no file can be there.
        OSError: If none can be written there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._is_begun = False
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise ValueError(f"`path`: expected a file in a folder that exists, got {str(path)!r}")
        if is_first_process():
            check_writable("path", self.path)

    def __repr__(self) -> str:
        return f"LineFile({str(self.path)!r})"

    def add(self, latest: Iterable[str], all_lines: Callable[[], Iterable[str]]) -> None:
        """Write the latest lines, or all, if they are the first.

        Raises:
            ValueError: If they are the first, and the file is there already.
        """
        if not is_first_process():
            return

        if self._is_begun:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(latest))
            return

        # Of two processes that begin at once, one is refused.
        with locking(self.path.parent):
            if self.path.exists() and self.path.stat().st_size > 0:
                raise ValueError(
                    f"`path`: expected a new file, got {str(self.path)!r}, which holds a record "
                    "already; give another path, or resume that record by load_state_dict"
                )
            self.replace(all_lines())

    def replace(self, all_lines: Iterable[str]) -> None:
        """Write all lines, in the place of what the file holds."""
        if not is_first_process():
            return

        # Whole or not at all: if the process is killed here, the lines before are still there.
        text = "".join(all_lines)
        write_atomically({self.path: lambda path: path.write_text(text, encoding="utf-8")})
        self._is_begun = True
