"""Run the code of the tutorials, in order, as a reader would; this makes their pictures.

Those of `findings.md` are figures of the published results, and are taken from there.

Run: python docs/pictures.py [tutorial ... findings]
"""

import os
import re
import shutil
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
TUTORIALS = Path(__file__).parent / "tutorials"
PUBLISHED = Path(__file__).parent.parent.resolve() / "results" / "published"

# By picture, the figure that it is.
FINDINGS = {"dilution.png": "table4.png"}


def code_of(page: Path) -> str:
    """The python blocks of a page, as one program whose line numbers are those of the page."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * len(text.splitlines())
    for block in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        first = text[: block.start(1)].count("\n")
        for i, line in enumerate(block[1].splitlines()):
            lines[first + i] = line
    return "\n".join(lines)


def main(names: list[str]) -> None:
    """Run what is named, or all; pictures land in the current folder's `pictures`."""
    Path("pictures").mkdir(exist_ok=True)
    for page in sorted(TUTORIALS.glob("*.md")):
        if not names or page.stem in names:
            exec(compile(code_of(page), str(page), "exec"), {"__name__": page.stem})

    if "findings" in names:
        for picture, figure in FINDINGS.items():
            shutil.copyfile(PUBLISHED / figure, Path("pictures") / picture)


if __name__ == "__main__":
    os.chdir(Path(__file__).parent)
    main(sys.argv[1:])
