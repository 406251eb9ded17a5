"""One command, one page: with stand-ins for the scripts, which `test_examples.py` runs."""

import base64
import html.parser
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import reproduce as reproduce_script

from lab.results.catalogue import find_scripts, question, reproduced
from lab.results.page import write_page

EXAMPLES = Path(__file__).parents[2] / "examples"
GOOD = '''"""Does <b> & "this" work? (table {number})"""
import matplotlib.pyplot as plt
import xarray as xr
from lab.results.options import arguments
from lab.results.publish import publish
from lab.results.verdicts import Row
args = arguments(__doc__, output="x.nc").parse_args()
assert args.scale == "smoke" and args.seeds == 3
figure, ax = plt.subplots(figsize=(3, 2))
rows = [Row("a < b", 1.5, float("nan"), note="so & so"), Row("n", 3, 3, "agrees")]
rows += [Row("sign", "+", "-", "disagrees")]
publish(xr.Dataset(), figure, rows, output=args.output, budget="2 > 1 epochs")
'''
BAD = '"""Does this fail? (table 2)"""\nraise RuntimeError("the <disk> is on fire")\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results of two good scripts and a bad one between them."""
    place = tmp_path_factory.mktemp("examples")
    shutil.copy(EXAMPLES / "reproduce.py", place)
    (place / "table1_good.py").write_text(GOOD.format(number=1))
    (place / "table2_bad.py").write_text(BAD)
    (place / "table10_good.py").write_text(GOOD.format(number=10))
    done = reproduce(place, "--seeds", "3")
    assert done.returncode == 1
    assert "1 of 3 failed: table2_bad" in done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:3]] == [
        "[1/3] table1_good",
        "[2/3] table2_bad",
        "[3/3] table10_good",
    ]

    return place


def reproduce(place, *options):
    paths = os.pathsep.join([str(EXAMPLES), str(EXAMPLES.parent)])
    return subprocess.run(
        [sys.executable, str(place / "reproduce.py"), *options],
        cwd=place,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=900,
    )


class Page(html.parser.HTMLParser):
    """Every tag closed in order; what is linked, shown and said."""

    VOID = ("meta", "img", "br", "!doctype")

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.ids, self.images, self.metas = [], [], [], [], {}
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "meta":
            self.metas[attrs.get("name", "charset")] = attrs.get("content", attrs.get("charset"))
        if tag == "img":
            self.images.append((attrs["src"], attrs["alt"]))

        self.links += [attrs[key] for key in ("href",) if key in attrs]
        self.ids += [attrs["id"]] if "id" in attrs else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_whole_and_needs_no_network(folder):
    text = (folder / "results" / "index.html").read_text()
    page = Page(text)
    assert page.open == []
    assert page.metas["viewport"] == "width=device-width, initial-scale=1"
    assert page.links == ["#table1_good", "#table2_bad", "#table10_good"]
    assert page.ids == [link[1:] for link in page.links]
    assert len(page.images) == 2

    for source, alt in page.images:
        kind, content = source.split(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(content, validate=True).startswith(b"\x89PNG")
        assert 'Does <b> & "this" work?' in alt

    for word in ("http://", "https://", "<script", "@import", "url("):
        assert word not in text


def test_the_page_says_all(folder):
    page = Page((folder / "results" / "index.html").read_text())
    counts = "6 quantities; agrees: 2, disagrees: 2, not comparable: 2"
    assert f"{counts}; scripts that failed: 1." in page.text
    assert "the 95 % interval of our mean over seeds" in page.text
    assert "budget: 2 > 1 epochs" in page.text
    assert "a < b" in page.text
    assert "so & so" in page.text
    assert "the <disk> is on fire" in page.text


def test_resume_runs_only_what_has_no_result(folder):
    (folder / "table2_bad.py").write_text(GOOD.format(number=2))
    before = (folder / "results" / "table1_good.nc").stat().st_mtime_ns
    done = reproduce(folder, "--seeds", "3", "--resume")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "[1/3] table1_good: there already"
    assert "[2/3] table2_bad: done" in done.stdout
    assert (folder / "results" / "table1_good.nc").stat().st_mtime_ns == before

    # Another budget is another result: these scripts accept three seeds only.
    done = reproduce(folder, "--seeds", "4", "--resume", "--only", "table1")
    assert "[1/1] table1_good: FAILED" in done.stdout

    done = reproduce(folder, "--seeds", "3", "--resume")
    assert "[1/3] table1_good: done" in done.stdout
    assert "[2/3] table2_bad: there already" in done.stdout
    assert "This script failed" not in Page((folder / "results" / "index.html").read_text()).text


def test_what_cannot_be_read_is_made_again(folder):
    table = folder / "results" / "table1_good.json"
    table.write_text(table.read_text()[:40])
    done = reproduce(folder, "--seeds", "3", "--resume", "--only", "table1", "table10")
    assert done.returncode == 0, done.stderr
    assert "[1/2] table1_good: done" in done.stdout
    assert "[2/2] table10_good: there already" in done.stdout
    assert "cannot be read" not in (folder / "results" / "index.html").read_text()


ROW = {"quantity": "a", "published": 1, "here": 2, "verdict": "agrees", "note": ""}


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b'{"budget": "one <run',
        b"\xff\xfe\x00",
        b"[]",
        b"{}",
        json.dumps({"budget": "x", "figures": [], "rows": [ROW | {"verdict": "so"}]}).encode(),
        json.dumps({"budget": "x", "figures": [], "rows": [ROW | {"here": [2]}]}).encode(),
        json.dumps({"budget": "x", "figures": [], "rows": [{"quantity": "a"}]}).encode(),
        json.dumps({"budget": "x", "figures": [], "rows": [1]}).encode(),
        json.dumps({"budget": 3, "figures": [], "rows": []}).encode(),
        json.dumps({"budget": "x", "figures": [1], "rows": []}).encode(),
    ],
)
def test_a_damaged_table_is_reported_and_the_others_are_shown(tmp_path, damage):
    whole = {"budget": "well spent", "figures": [], "rows": [ROW]}
    (tmp_path / "table1_x.json").write_text(json.dumps(whole))
    (tmp_path / "table2_x.json").write_bytes(damage)
    (tmp_path / "table3_x.log").write_bytes(b"died of \xff")
    titles = {"table1_x": "One?", "table2_x": "Two?", "table3_x": "Three?", "table4_x": "Four?"}
    assert write_page(tmp_path, titles, ["table3_x"]) == ["table2_x"]

    page = Page((tmp_path / "index.html").read_text())
    assert page.open == []
    assert page.ids == list(titles)
    assert "scripts that failed: 1; results that cannot be read: 1." in page.text
    assert "This result cannot be read: table2_x.json is damaged" in page.text

    for shown in ("budget: well spent", "died of", "No result yet."):
        assert shown in page.text


def test_a_list_names_every_script_and_runs_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reproduce_script, "run_script", lambda *_, **__: pytest.fail("was run"))
    reproduce_script.main(["--list"])
    lines = capsys.readouterr().out.splitlines()
    scripts = {path.stem for path in EXAMPLES.glob("*.py")} - {"quickstart", "reproduce"}
    assert sorted(line.split()[0] for line in lines) == sorted(scripts)
    assert all(len(line.split()) > 3 for line in lines)  # with its question
    assert list(tmp_path.iterdir()) == []


def test_choosing():
    assert list(find_scripts(EXAMPLES, ["table1", "figure5"])) == [
        "table1_dose_response",
        "figure5_landscape",
    ]
    assert list(find_scripts(EXAMPLES, ["table8", "figure3"])) == [
        "figure5_landscape",
        "table5_gradient_conflict",
    ]

    with pytest.raises(SystemExit, match=r"--only: expected some of figure4.*; got 'tabel1'"):
        find_scripts(EXAMPLES, ["tabel1"])

    everything = find_scripts(EXAMPLES)
    assert "reproduce" not in everything
    assert list(everything)[:2] == ["figure4_attention", "figure5_landscape"]

    for path in everything.values():
        assert question(path).endswith(("?", ")"))


def test_every_table_and_figure_of_the_appendix_has_a_script():
    found = set().union(*(reproduced(question(path)) for path in find_scripts(EXAMPLES).values()))
    assert found >= {f"table{n}" for n in range(1, 33)} | {f"figure{n}" for n in range(2, 10)}
