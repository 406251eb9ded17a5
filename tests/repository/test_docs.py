"""The documentation builds without a warning, and the code of the tutorials runs."""

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest
import timm
import torch
from torch.nn import functional as F

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def test_the_pages_build_without_a_warning(tmp_path):
    # A copy, since the pages land beside the settings; the packages stay where they are.
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("*.py"))
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    here = settings.replace("paths: [.]", f"paths: ['{ROOT.as_posix()}']")
    (tmp_path / "mkdocs.yml").write_text(here, encoding="utf-8")

    command = [sys.executable, "-m", "zensical", "build", "--strict", "-f", "mkdocs.yml"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr

    site = tmp_path / "build" / "site"
    api = (site / "api" / "landscape.html").read_text(encoding="utf-8")
    assert "landscape.grid" in api
    assert "filter by filter" in api  # of the docstring
    for page in site.rglob("*.html"):  # readable offline: nothing is loaded from elsewhere
        loaded = re.findall(
            r'<(?:script|img|link)[^>]+(?:src|href)="https?://[^"]*"',
            page.read_text(encoding="utf-8"),
        )
        assert not loaded, page


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_a_notebook_and_makes_its_pictures(page, tmp_path, monkeypatch):
    export = runpy.run_path(str(ROOT / "docs" / "notebooks.py"))
    notebook = nbformat.from_dict(export["export_notebook"](page))
    nbformat.validate(notebook)

    monkeypatch.chdir(tmp_path)
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    namespace = {"__name__": page.stem}
    for number, source in enumerate(code):
        exec(compile(source, f"{page.name}, cell {number}", "exec"), namespace)
    plt.close("all")

    # Nothing of the page's code is missing, nothing was added but the first cell.
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.DOTALL)
    assert [block.strip() for block in blocks] == code[1:]

    shown = set(re.findall(r"\(\.\./pictures/([a-z_]+\.png)\)", page.read_text(encoding="utf-8")))
    assert shown == {path.name for path in (tmp_path / "pictures").iterdir()}
    assert all((ROOT / "docs" / "pictures" / name).is_file() for name in shown)


def test_the_text_of_a_notebook_is_that_of_its_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\nSee [there](there.md) and [here](https://example.org).\n\n"
        "```python\nx = 1\n```\n\n![What x is](../pictures/x.png)\n\nDone.\n",
        encoding="utf-8",
    )
    cells = runpy.run_path(str(ROOT / "docs" / "notebooks.py"))["export_notebook"](page)["cells"]

    assert ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"] == [
        "# Title\n\nSee there and [here](https://example.org).",
        "Done.",
    ]
    assert cells[-2]["source"] == ["x = 1"]


@pytest.mark.parametrize("name", ["recipes.md", "monitor.md"])
def test_the_recipes_run(name):
    page = ROOT / "docs" / name
    code_of = runpy.run_path(str(ROOT / "docs" / "pictures.py"))["code_of"]
    exec(compile(code_of(page), page.name, "exec"), {"__name__": "recipes"})


def test_every_page_is_in_the_navigation():
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r": ([\w/]+\.md)$", settings, re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert TUTORIALS
    assert sorted(listed) == sorted(pages)


def test_the_gallery_is_there_and_small():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", readme)
    assert "docs/pictures/page.png" in pictures
    assert len(pictures) >= 6
    for name in pictures:
        assert (ROOT / name).stat().st_size < 120_000, name


def test_the_map_names_files_and_functions_that_exist():
    packages = ("probes", "landscape", "gradients", "attention", "nudging", "resonance_toolkit")
    sources = {
        path: path.read_text(encoding="utf-8")
        for name in packages
        for path in (ROOT / name).rglob("*.py")
    }
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    walks = "\n".join(re.findall(r"```text\n(.*?)```", page, re.DOTALL))

    # A walk names files from its package's folder on: `_surfaces/grid.py`.
    for name in set(re.findall(r"[\w/]+\.py\b", page)):
        places = (ROOT, *(ROOT / package for package in packages))
        assert any((place / name).is_file() for place in places), name

    # Calls have parentheses, `Update.begin()`; classes a capital: `Probe`.
    functions = set(re.findall(r"\b(\w+)\(\)", walks))
    classes = set(re.findall(r"- ([A-Z]\w+)", walks))
    everything = "\n".join(sources.values())
    assert len(functions) > 30
    missing = [name for name in functions if not re.search(rf"def {name}\(", everything)]
    missing += [name for name in classes if not re.search(rf"class {name}\b", everything)]
    assert not missing


def test_the_tree_in_contributing_is_the_one_on_disk():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (tree,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)

    listed = set()
    for line in tree.splitlines():
        names = re.match(r"\s*((?:[\w.]+(?:/|\.py)(?:  )?)+)", line)[1].split()
        if not line.startswith(" "):
            (folder,) = (ROOT / name for name in names)
            listed.add(folder)
        else:
            listed.update(folder / name for name in names)

    assert not [path for path in listed if not path.exists()]
    rooms = {
        path
        for package in listed
        for path in package.glob("_*")
        if path.is_dir() and path.name != "__pycache__"
    }
    assert rooms <= listed


def test_the_first_calls_of_the_page_for_assistants_run(tmp_path, monkeypatch):
    page = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)

    # Minutes are for readers; files go where nobody looks for them.
    assert code.count('budget="minutes"') == 1
    code = code.replace('budget="minutes"', 'budget=1, parts=["model", "gradients"]')
    monkeypatch.chdir(tmp_path)

    def small_vit():
        return timm.models.VisionTransformer(
            img_size=8, patch_size=2, in_chans=1, num_classes=10, embed_dim=16, depth=3, num_heads=2
        )

    torch.manual_seed(0)
    model = small_vit()
    x = torch.randn(12, 1, 8, 8)
    y = torch.arange(12) % 10
    logits = model(x)
    names = {
        "torch": torch,
        "F": F,
        "model": model,
        "other_model": small_vit(),
        "x": x,
        "y": y,
        "data": (x, y),
        "main": F.cross_entropy(logits, y),
        "auxiliary": logits.square().mean(),
    }
    exec(compile(code, "AGENTS.md", "exec"), names)
    assert set(names["result"].sizes) >= {"layer", "threshold"}
    assert "report.html" in {path.name for path in tmp_path.iterdir()}
