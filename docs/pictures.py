"""Run the code of the tutorials, in order, as a reader would; this makes their pictures.

Those of `findings.md` are figures of the published results, and are taken from there. `page` is
the top of the first command's page, as Chromium shows it: that takes some minutes, or the
`result.nc` of an earlier run.

Run: python docs/pictures.py [tutorial ... findings page] [result.nc]
"""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl

from resonance_toolkit._front.command import main as run_command

mpl.use("agg")
TUTORIALS = Path(__file__).parent / "tutorials"
PUBLISHED = Path(__file__).parent.parent.resolve() / "results" / "published"

# By picture, the figure that it is.
FINDINGS = {
    "dilution.png": "table4.png",
    "gradient_conflict.png": "table5.png",
    "dose_response.png": "table1.png",
    "learning.png": "figure8.png",
    "penalty_or_resonance.png": "penalty_or_resonance.png",
}

_VIEWPORT = {"width": 980, "height": 1330}


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

    if "page" in names:
        results = [Path(name) for name in names if name.endswith(".nc")]
        with tempfile.TemporaryDirectory() as folder:
            report = make_report(results, Path(folder))
            photograph(report, Path("pictures", "page.png"))


def make_report(results: list[Path], folder: Path) -> Path:
    """Write the page of the first command, or of a result that is there."""
    report = folder / "report.html"
    words = ["show", str(results[0]), "--output", str(report)] if results else None
    run_command(words or ["examine", "digits", "--output", str(folder)])
    return report


def photograph(report: Path, picture: Path) -> None:
    """Take the top of a page as a picture of few colours, which makes a small file."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    browser_path = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path)
        page = browser.new_page(viewport=_VIEWPORT)
        page.goto(report.resolve().as_uri(), wait_until="load")
        page.screenshot(path=picture)
        browser.close()

    with Image.open(picture) as image:
        small = image.convert("RGB").quantize(64)
    small.save(picture, optimize=True)


if __name__ == "__main__":
    words = [str(Path(word).resolve()) if word.endswith(".nc") else word for word in sys.argv[1:]]
    os.chdir(Path(__file__).parent)
    main(words)
