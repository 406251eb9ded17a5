"""The pages that the toolkit writes, in a real browser, as wide as a desktop and as a phone."""

import json
import shutil
from dataclasses import asdict

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from playwright.sync_api import sync_playwright

import landscape
import probes
import resonance
from lab.results.page import write_page
from lab.results.publish import publish
from lab.results.verdicts import Row
from tests.helpers.examined_trees import make_tree

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="needs Chromium: apt-get install chromium, or your system's package"
)
WIDTHS = {"desktop": (1280, 800), "phone": (390, 844)}
LONG = "a_quantity_of_which_the_name_has_no_place_where_a_browser_could_break_the_line_" * 2
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
PAINTED = """canvas => {
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  for (let i = 0; i < data.length; i += 4) colours.add(data.slice(i, i + 4).join());
  return colours.size;
}"""


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER)
        yield opened
        opened.close()


@pytest.fixture(params=WIDTHS)
def show(request, browser):
    """Open a file; nothing may be fetched besides it, and nothing complained of."""
    width, height = WIDTHS[request.param]
    phone = request.param == "phone"
    context = browser.new_context(
        viewport={"width": width, "height": height}, is_mobile=phone, has_touch=phone
    )
    page, asked, said = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))

    def opened(path):
        page.goto(path.as_uri(), wait_until="load")
        page.set_default_timeout(60_000)
        assert page.evaluate("window.innerWidth") == width
        return page

    yield opened
    assert [url for url in asked if not url.startswith("data:")] == [page.url]
    assert said == []

    context.close()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two results and a failure, with all that is hard to fit."""
    folder = tmp_path_factory.mktemp("results")
    figures = {}
    for name, size in {"": (16, 4), "small": (2, 2)}.items():
        figures[name], ax = plt.subplots(figsize=size, layout="constrained")
        ax.plot([0, 1])

    rows = [
        Row("gain of ViT-6L, 20 branches", 9.2, -3.4, note="other sign"),
        Row(LONG, 1.5e-7, float("nan"), note=LONG),
        Row("order by deep cosine", "CB > SB > DFA", "CB > SB > DFA and " * 9, "disagrees"),
        Row("parameters", 123_456_789, 123_456_789, "agrees"),
    ]

    budget = f"digits, 20 images per class, 2 epochs, {LONG}"
    publish(xr.Dataset(), figures, rows, output=folder / "table1_wide.nc", budget=budget)
    publish(xr.Dataset(), figures[""], rows[:1], output=folder / "figure2_x.nc", budget="none")
    for figure in figures.values():
        plt.close(figure)

    (folder / "table3_broken.log").write_text(f"Traceback\n  {LONG * 4}\nRuntimeError: on fire")

    titles = {"table1_wide": f"Does it fit? {LONG}", "figure2_x": "And this?"}
    titles |= {"table3_broken": "Does this fail?", "table4_later": "Not yet run?"}
    write_page(folder, titles, ["table3_broken"])
    return folder / "index.html"


def test_results_fit_and_show_everything(results, show):
    page = show(results)
    assert page.evaluate(FITS)
    assert page.title() == "Published and measured"

    boxes = page.locator("figure .picture")
    assert boxes.count() == 3

    for i in range(3):
        box = boxes.nth(i)
        natural, high, shown, left, right, wide = box.evaluate(
            """box => [box.firstChild.naturalWidth, box.firstChild.naturalHeight,
                box.firstChild.clientWidth, box.getBoundingClientRect().left,
                box.getBoundingClientRect().right, document.documentElement.clientWidth]"""
        )
        assert 0 <= left < right <= wide
        assert natural / 2 <= shown <= natural  # so that letters can be read
        assert natural > 2 * high or shown <= right - left

        # Both ends come into view.
        box.evaluate("box => { box.scrollLeft = box.scrollWidth }")
        assert box.evaluate("box => box.firstChild.getBoundingClientRect().right") <= right + 1

        hint = box.locator("xpath=following-sibling::figcaption")
        assert hint.count() == (natural > 2 * high)

        if hint.count():
            assert hint.is_visible() == (page.viewport_size["width"] < 640)

    assert page.evaluate(FITS)

    for text in ("agrees", "disagrees", "not comparable"):
        assert page.locator("td", has_text=text).last.is_visible()

    for heading in page.locator("h1, h2").all():
        assert heading.is_visible()
        box = heading.bounding_box()
        assert box["x"] >= 0
        assert box["width"] > 100

    assert page.locator("h2").count() == 4
    assert page.get_by_text("RuntimeError: on fire").is_visible()
    assert page.get_by_text("No result yet.").is_visible()


def test_links_lead_to_their_sections(results, show):
    page = show(results)
    page.get_by_role("link", name="table3 broken").click()
    assert page.locator("#table3_broken").is_visible()
    place = page.locator("#table3_broken h2").bounding_box()
    assert 0 <= place["y"] < page.viewport_size["height"]
    page.go_back()


def test_a_surface_is_painted_and_turns(tmp_path, show):
    a = np.linspace(-1, 1, 9)
    loss = a[:, None] ** 2 + 0.5 * a**2
    plane = xr.Dataset({"loss": (("alpha", "beta"), loss)}, {"alpha": a, "beta": a})
    path = tmp_path / "surface.html"
    path.write_text(landscape.html_surface(plane, title="A surface with a rather long title"))
    page = show(path)
    assert page.evaluate(FITS)

    canvas = page.locator("canvas")
    assert canvas.evaluate(PAINTED) > 20

    before = canvas.screenshot()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 180, box["y"] + 130)
    page.mouse.up()
    assert canvas.screenshot() != before


def test_a_text_with_its_exits_is_readable(tmp_path, show):
    words = list("the quick brown fox and " + "a" * 200 + "\n<&> jumps")
    count = len(words)
    variables = {
        "left_at": ("token", np.arange(count) % 3),
        "confidence": ("token", np.linspace(0, 1, count)),
    }
    exits = xr.Dataset(variables, {"layer": ["a", "b", "c"]})
    path = tmp_path / "text.html"
    path.write_text(probes.html_exit_text(exits, words, title="Where each token left"))
    page = show(path)
    assert page.evaluate(FITS)
    assert page.locator("pre").inner_text().replace("\n", "").startswith("the quick brown fox")
    assert page.locator("pre span").count() == count

    colours = {
        page.locator(f"pre .e{i}").first.evaluate("e => getComputedStyle(e).backgroundColor")
        for i in range(3)
    }
    assert len(colours) == 3


# Each of these ran, or ended the script around it, in a page that escaped less.
HOSTILE = [
    "<script>window.pwned = 1</script>",
    '<img src=x onerror="window.pwned=1">',
    'x"><img src=x onerror="document.title=\'PWNED\'">',
    'x" onmouseover="document.title=\'PWNED\'" y="',
    "' autofocus onfocus='window.pwned=1",
    "</style><script>window.pwned = 1</script>",
    "</script><script>window.pwned = 1</script>",
    "<!--<script>",
    "@DATA@ @TITLE@ {{ title }} {% raw %}",
    "\u2028 \\u003cb\\u003e &lt;b&gt;",
]
MARKUP = "document.querySelectorAll('img:not([src^=data]), [onmouseover], [onfocus]').length"


def test_no_text_of_a_surface_becomes_markup(tmp_path, browser):
    loss = np.outer([1.0, 0.0, 1.0], [1.0, 0.5, 1.0])
    axis = np.linspace(-1, 1, 3)

    for text in ("@DATA@", "<!--<script>", " ".join(HOSTILE)):
        plane = xr.Dataset(
            {text: (("alpha", "beta"), loss, {"long_name": text})},
            {"alpha": axis, "beta": axis},
            {"model": text},
        )
        shown = open_hostile(browser, tmp_path, landscape.html_surface(plane, variable=text))
        assert shown.locator("b").text_content() == text
        assert shown.evaluate("data.name") == text  # the script has run, with these words
        assert shown.locator("#at").inner_text().startswith("3 x 3 points")
        assert shown.locator("canvas").evaluate(PAINTED) > 5
        shown.close()


def test_no_text_of_exits_becomes_markup(tmp_path, browser):
    variables = {"left_at": ("token", np.arange(len(HOSTILE)))}
    exits = xr.Dataset(variables, {"layer": HOSTILE})

    page = probes.html_exit_text(exits, HOSTILE, title=HOSTILE[1])
    shown = open_hostile(browser, tmp_path, page)
    assert shown.title() == HOSTILE[1]
    assert shown.locator("pre").text_content() == "".join(HOSTILE)
    tooltips = [shown.locator(f"pre .e{i}").first.get_attribute("title") for i in range(10)]
    assert tooltips == [f"after {text}" for text in HOSTILE]
    shown.close()


def test_no_text_of_a_table_becomes_markup(tmp_path, browser):
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "results"
    folder.mkdir()

    # One result of hostile words alone; one that is damaged; one whose script failed.
    rows = [asdict(Row(text, text, text, "agrees", note=text)) for text in HOSTILE]
    figures = ["../secret", str(tmp_path / "secret"), "/etc/hostname", "..", ""]
    record = {"budget": HOSTILE[1], "figures": figures, "rows": rows}
    (folder / "table1.json").write_text(json.dumps(record))
    damaged = {"budget": "", "figures": [], "rows": [{HOSTILE[1]: 1}]}
    (folder / "table2.json").write_text(json.dumps(damaged))
    (folder / "table3.log").write_text("\n".join(HOSTILE[:3]))

    names = {"table1": HOSTILE[0], "table2": HOSTILE[1], "table3": HOSTILE[2], HOSTILE[3]: ""}
    write_page(folder, names, ["table3"])
    text = (folder / "index.html").read_text()
    assert "data:image" not in text

    shown = open_hostile(browser, folder, text)
    cells = shown.locator("tbody td:first-child").all_text_contents()
    assert cells == HOSTILE
    assert shown.locator("small").all_text_contents() == HOSTILE
    assert shown.locator("h2").all_text_contents() == list(names.values())
    shown.close()


def test_no_text_of_an_examination_becomes_markup(tmp_path, browser):
    everything = " ".join(HOSTILE)
    for layers in (HOSTILE[:4], HOSTILE[4:8]):
        tree = make_tree(tuple(layers), text=everything)
        path = resonance.page(tree, tmp_path / "page.html", title=everything)
        shown = open_hostile(browser, tmp_path, path.read_text(encoding="utf-8"))
        assert shown.locator("h1").text_content() == everything
        words = shown.locator("body").text_content()
        assert all(layer in words for layer in layers)
        shown.close()


def test_no_text_of_any_result_becomes_markup(tmp_path, browser):
    norms = xr.Dataset(
        {
            "gradient_norm": (
                "layer",
                np.arange(10.0),
                {"long_name": HOSTILE[1], "units": HOSTILE[0]},
            )
        },
        {"layer": HOSTILE},
        {"made_by": HOSTILE[2], "model": HOSTILE[3]},
    )
    path = resonance.page({text: norms for text in HOSTILE}, tmp_path / "page.html")
    shown = open_hostile(browser, tmp_path, path.read_text(encoding="utf-8"))
    assert all(text.strip() in shown.locator("body").text_content() for text in HOSTILE)
    shown.close()


def open_hostile(browser, folder, text):
    """Open a page that holds hostile words; none of them may have run."""
    path = folder / "hostile.html"
    path.write_text(text, encoding="utf-8")
    shown = browser.new_page()
    errors = []
    shown.on("pageerror", lambda error: errors.append(str(error)))
    shown.on("request", lambda request: errors.append(request.url))
    shown.goto(path.as_uri(), wait_until="load")
    assert errors == [path.as_uri()]
    assert not shown.evaluate("'pwned' in window")
    assert shown.evaluate(MARKUP) == 0
    return shown
