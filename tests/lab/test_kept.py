"""The page of kept results: whole, counted, and the later folder wins."""

import json

import pytest

from lab.results.kept import LARGEST, keep, write_results
from lab.results.record import read_record
from lab.results.verdicts import Row

TITLES = {"table12_cifar10": "The same on ten classes?", "figure5_landscape": "Smoother?"}


def write(folder, name, rows, *, figures=(), **more):
    folder.mkdir(exist_ok=True)
    record = {"budget": "200 epochs", "figures": list(figures), "rows": rows, **more}
    (folder / f"{name}.json").write_text(json.dumps(record))
    for figure in figures:
        (folder / figure).write_bytes(b"\x89PNG")


def entry(**changes):
    return {"quantity": "plain / %", "published": 49.5, "here": 49.4, "verdict": "agrees"} | changes


def test_what_is_run_goes_before_what_is_kept(tmp_path):
    kept, folder = tmp_path / "kept", tmp_path / "run"
    numbers = {"deviation": 0.3, "p": "0.0001", "low": 49.2, "high": 49.6}
    write(kept, "table12_cifar10.mlp", [entry(here=1.0)], command="python old.py")
    write(folder, "table12_cifar10.mlp", [entry(**numbers)], command="python new.py", version="1")
    write(kept, "figure5", [entry(verdict="disagrees"), entry(published=None)], figures=["a.png"])

    page = tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    pictures = page.parent / "pictures"
    write_results(page, [kept, folder], TITLES, pictures=pictures)
    text = page.read_text()
    assert "**2 published quantities: agrees 1, disagrees 1, not comparable 0.**" in text
    assert "| plain / % | 49.5 ± 0.3 (p = 0.0001) | 49.4 [49.2, 49.6] | agrees |" in text
    assert "Command: `python new.py`, version 1." in text
    assert "old.py" not in text
    assert "![figure5](pictures/a.png)" in text
    assert (pictures / "a.png").is_file()
    assert text.index("table12") < text.index("figure5")  # in the order of the titles


def test_what_many_rows_say_has_a_letter(tmp_path):
    obstacle = "digits, which are not CIFAR-10"
    notes = [f"{obstacle}; intervals do not meet", *[f"{obstacle}; spread {i}" for i in range(4)]]
    rows = [entry(verdict="not comparable", note=note) for note in notes]
    write(tmp_path, "figure5", [*rows, entry(note="counted +- nothing", low=1.0, high=2.0)])

    page = tmp_path / "results.md"
    write_results(page, [tmp_path], TITLES, pictures=tmp_path / "pictures")
    text = page.read_text()
    assert text.count(obstacle) == 1
    assert f"\n*a* {obstacle}.\n" in text
    assert "| not comparable (*a*; intervals do not meet) |" in text
    assert "| not comparable (*a*; spread 3) |" in text
    assert "agrees (counted ± nothing)" in text
    assert "| [figure5](#figure5) | 1 | 0 | 5 |" in text
    assert "1 verdicts rest on an interval, 0 are of counts and orders." in text


def test_what_few_rows_say_is_said_there(tmp_path):
    note = "a note that is longer than a letter"
    write(tmp_path, "figure5", [*[entry(note=note)] * 4, *[entry()] * 20])
    page = tmp_path / "results.md"
    write_results(page, [tmp_path], TITLES, pictures=tmp_path / "pictures")
    assert page.read_text().count(note) == 4


def test_only_what_is_small_is_kept(tmp_path):
    folder, kept = tmp_path / "run", tmp_path / "kept"
    write(folder, "table12_cifar10", [entry()], figures=["table12_cifar10.png"])
    (folder / "table12_cifar10.nc").write_bytes(bytes(LARGEST + 1))
    (folder / "table12_cifar10.log").write_text("talk")
    (folder / "stranger.json").write_text("{}")
    names = {path.name for path in keep(folder, kept, list(TITLES))}
    assert names == {"table12_cifar10.json", "table12_cifar10.png"}
    assert {path.name for path in kept.iterdir()} == names


def test_a_kept_table_is_checked(tmp_path):
    write(tmp_path, "table12_cifar10", [entry(low=[1])])
    with pytest.raises(ValueError, match="is damaged"):
        read_record(tmp_path / "table12_cifar10.json")
    assert Row(**entry()).low is None  # tables of earlier versions have no interval
