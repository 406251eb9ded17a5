"""The table of the calibration finds its place on a page, and leaves the rest of it alone."""

import pytest
import recipe_calibration
import xarray as xr


def make_runs():
    curve = [0.2, 0.5, 0.4]
    variables = {"test_accuracy": ("epoch", curve), "train_accuracy": ("epoch", [0.2, 0.5, 0.9])}
    run = xr.Dataset(variables, {"epoch": [1, 2, 3]})
    return {"constant": [run, run + 0.01], "cosine": [run, run]}


def test_the_numbers_are_those_of_the_curves():
    result = recipe_calibration.measure(make_runs(), [42, 43])
    first = result.sel(recipe="constant", seed=42)
    numbers = [first[name].item() for name in ("last_accuracy", "best_accuracy", "best_epoch")]
    assert numbers == pytest.approx([40, 50, 2])
    assert first["gap"].item() == pytest.approx(50)


def test_no_assumption_has_a_verdict():
    """Of several that are tried some will meet the published number."""
    result = recipe_calibration.measure(make_runs(), [42, 43])
    rows = recipe_calibration.rows_of(result, ["one of several assumptions"])
    assert {row.verdict for row in rows} == {"not comparable"}
    assert [row.published for row in rows] == [49.5, 53.57] * 2


def test_the_table_lies_between_its_marks(tmp_path):
    begin, end = recipe_calibration.MARKS
    page = tmp_path / "recipe.md"
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    result = recipe_calibration.measure(make_runs(), [42, 43])
    recipe_calibration.write_table(page, recipe_calibration.table_of(result, "two seeds"))

    head, _, tail = page.read_text().partition(begin)
    table, _, tail = tail.partition(end)
    assert (head, tail) == ("before\n", "\nafter\n")
    assert "old" not in table
    assert "| cosine | 40 [40, 40] | 50 [50, 50] | 2 | 50.0 |" in table

    page.write_text("no marks")
    with pytest.raises(ValueError, match="has no lines"):
        recipe_calibration.write_table(page, table)
