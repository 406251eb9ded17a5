"""Export the tutorials as Jupyter notebooks: the same text, the same code, cell by cell.

Run: python docs/notebooks.py FOLDER

A notebook has no outputs, so that it is the same wherever it is made; running it shows them.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
TUTORIALS = DOCS / "tutorials"

# What a reader needs who has the notebook alone.
_FIRST_CELL = """\
# Where the toolkit is not installed yet: %pip install 'resonance-toolkit[examples,transformers]'
from pathlib import Path

Path("pictures").mkdir(exist_ok=True)"""

_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# A picture is what the cell above it draws.
_PICTURE = re.compile(r"^!\[[^\]]*\]\(\.\./pictures/[^)]*\)\n?", re.MULTILINE)

# Links between pages lead nowhere from a notebook: what remains is their text.
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")


def export_notebook(page: Path) -> dict[str, Any]:
    """Make the notebook of a page, in version 4.5 of Jupyter's format."""
    text = page.read_text(encoding="utf-8")

    cells = []
    position = 0
    for block in _PYTHON.finditer(text):
        cells.append(_text_cell(text[position : block.start()]))
        cells.append(_code_cell(block[1]))
        position = block.end()
    cells.append(_text_cell(text[position:]))

    # After the title, before anything that draws.
    cells.insert(1, _code_cell(_FIRST_CELL))
    filled = [cell for cell in cells if cell["source"]]
    for number, cell in enumerate(filled):
        cell["id"] = f"{page.stem}-{number}"

    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {
        "cells": filled,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def main(folder: Path) -> list[Path]:
    """Write the notebook of every tutorial into a folder, and tell which."""
    folder.mkdir(parents=True, exist_ok=True)

    paths = []
    for page in sorted(TUTORIALS.glob("*.md")):
        path = folder / f"{page.stem}.ipynb"
        notebook = json.dumps(export_notebook(page), indent=1, ensure_ascii=False)
        path.write_text(notebook + "\n", encoding="utf-8")
        paths.append(path)
    return paths


def _text_cell(text: str) -> dict[str, Any]:
    readable = _LINK.sub(r"\1", _PICTURE.sub("", text)).strip()
    return {"cell_type": "markdown", "metadata": {}, "source": _lines(readable)}


def _code_cell(code: str) -> dict[str, Any]:
    cell = {"cell_type": "code", "metadata": {}, "source": _lines(code.strip())}
    return cell | {"execution_count": None, "outputs": []}


def _lines(text: str) -> list[str]:
    # Jupyter keeps a cell as lines, so that changes can be compared.
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for notebook_path in main(Path(sys.argv[1])):
        print(notebook_path)
