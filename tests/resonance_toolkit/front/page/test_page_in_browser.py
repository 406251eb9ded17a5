"""Pages in a real browser: as wide as a desktop and as a phone, light and dark, without scripts."""

import shutil

import numpy as np
import pytest
from playwright.sync_api import expect, sync_playwright

import resonance_toolkit as resonance
from tests.helpers.examined_trees import PARTS, make_tree

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="needs Chromium: apt-get install chromium, or your system's package"
)

WIDTHS = {"desktop": 1280, "phone": 390}
LONG = "a_model_of_which_the_name_has_no_place_where_a_browser_could_break_the_line_" * 2
DEEP = [f"encoder.transformer.layers.{i}.block_of_attention_and_perceptron" for i in range(48)]

# Each ran, or ended what was around it, in a page that escaped less.
HOSTILE = [
    "<script>window.pwned = 1</script>",
    'x"><img src=x onerror="window.pwned=1">',
    'x" onmouseover="window.pwned=1" y="',
    "</style></svg></text></script><script>window.pwned = 1</script>",
    "<!--<script>",
    "`<img src=x onerror=window.pwned=1>` and `<b>`",
    "{{ 7 * 7 }} {% raw %} @DATA@",
    "]]> &lt;b&gt; \u2028 $\\frac{$ %(x)s",
]

FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
# What is wider than the page, or than the box around it that scrolls.
TOO_WIDE = """() => [...document.querySelectorAll("body *")].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width && box.right > innerWidth + 1 && !e.closest(".scroll, .plot, svg");
}).map(e => e.tagName + " " + e.textContent.slice(0, 40))"""
PAINTED = """canvas => {
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  for (let i = 0; i < data.length; i += 4) colours.add(data.slice(i, i + 4).join());
  return colours.size;
}"""
# Contrast as WCAG has it, of an element's letters against what is behind them.
CONTRAST = """element => {
  const paint = colour => {
    const ink = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    ink.fillStyle = colour;
    ink.fillRect(0, 0, 1, 1);
    return [...ink.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const part = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  let behind = [0, 0, 0, 0];
  for (let e = element; e && !behind[3]; e = e.parentElement)
    behind = paint(getComputedStyle(e).backgroundColor);
  const style = getComputedStyle(element);
  const ink = paint(element.namespaceURI.endsWith("svg") ? style.fill : style.color);
  const [low, high] = [light(ink), light(behind)].sort((p, q) => p - q);
  return (high + 0.05) / (low + 0.05);
}"""


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER)
        yield opened
        opened.close()


@pytest.fixture
def show(browser):
    """Open a file as a reader has it; nothing may be fetched besides it, nothing complained of."""
    contexts, asked, said = [], [], []

    def opened(path, width="desktop", scheme="light", *, scripts=True):
        is_phone = width == "phone"
        context = browser.new_context(
            viewport={"width": WIDTHS[width], "height": 844},
            is_mobile=is_phone,
            has_touch=is_phone,
            color_scheme=scheme,
            java_script_enabled=scripts,
        )
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.set_default_timeout(60_000)
        page.goto(path.as_uri(), wait_until="load")
        return page

    yield opened
    assert {url for url in asked if not url.startswith(("file:", "data:"))} == set()
    assert len([url for url in asked if url.startswith("file:")]) == len(contexts)
    assert said == []
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page with all that is hard to fit: 48 layers, names that cannot be broken."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    return resonance.page(make_tree(DEEP, text=LONG), path)


@pytest.fixture(scope="module")
def small_report(tmp_path_factory):
    return resonance.page(make_tree(), tmp_path_factory.mktemp("small") / "report.html")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_fits_and_can_be_read(report, show, width, scheme):
    page = show(report, width, scheme)
    assert page.evaluate(FITS)
    assert page.evaluate(TOO_WIDE) == []

    for part in PARTS:
        section = page.locator(f"section#{part}")
        assert section.locator("h2").is_visible()
        assert section.locator(".call code").is_visible()
    for svg in page.locator("section#response figure svg").all():
        assert svg.bounding_box()["width"] > 250

    words = [".answer", ".question >> nth=0", "section#model .numbers td >> nth=3", ".chip"]
    words += ["section#gradients svg text >> nth=0", ".call code >> nth=0", "figcaption >> nth=0"]
    for selector in words:
        assert page.locator(selector).first.evaluate(CONTRAST) > 4.5, selector


@pytest.mark.parametrize("width", WIDTHS)
def test_the_answer_is_what_one_sees_first(small_report, show, width):
    page = show(small_report, width)
    answer = page.locator(".verdict .answer").bounding_box()
    assert 0 < answer["y"] < 400
    assert answer["y"] < page.locator("table").first.bounding_box()["y"]


@pytest.mark.parametrize("width", WIDTHS)
def test_without_scripts_nothing_is_missing_but_what_moves(small_report, show, width):
    page = show(small_report, width, scripts=False)
    for part in PARTS:
        assert page.locator(f"section#{part} .call code").is_visible()
    assert page.locator("section#landscape svg").first.is_visible()
    assert page.locator(".numbers td").first.is_visible()
    assert not page.locator(".surface").is_visible()
    assert page.locator("button").count() == 0

    details = page.locator(".verdict details")
    assert not details.locator("p").is_visible()
    details.locator("summary").click()  # opens without a script
    assert details.locator("p").is_visible()


def test_layers_are_sorted_by_any_column(small_report, show):
    page = show(small_report)
    table = page.locator("#layers table")
    column = table.locator("th").all_text_contents().index("cosine, now")
    cells = table.locator(f"tbody td:nth-child({column + 1}) data")
    before = [float(cell.get_attribute("value")) for cell in cells.all()]
    assert before != sorted(before)

    head = table.locator(f"th:nth-child({column + 1})")
    head.locator("button").click()
    assert [float(cell.get_attribute("value")) for cell in cells.all()] == sorted(before)
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").press("Enter")
    assert [float(c.get_attribute("value")) for c in cells.all()] == sorted(before, reverse=True)

    # Numbers in names count as numbers: layer 10 comes after layer 9.
    names = table.locator("tbody td:first-child")
    table.locator("th:first-child button").click()
    assert names.all_text_contents() == [f"blocks.{i}" for i in range(4)]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_surface_is_painted_and_turns(small_report, show, width):
    page = show(small_report, width)
    canvas = page.locator(".surface canvas")
    assert canvas.is_visible()
    assert canvas.evaluate(PAINTED) > 20

    before = canvas.screenshot()
    canvas.focus()
    canvas.press("ArrowRight")
    by_keys = canvas.screenshot()
    assert by_keys != before

    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 180, box["y"] + 90)
    page.mouse.up()
    assert canvas.screenshot() != by_keys


def test_a_call_is_copied(small_report, show):
    page = show(small_report)
    call = page.locator("section#gradients .call")
    call.get_by_role("button", name="Copy").click()
    call.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("getSelection().toString()") in ("", call.locator("code").inner_text())


def test_the_contents_lead_to_their_sections(small_report, show):
    page = show(small_report)
    page.get_by_role("link", name="Curvature").first.click()
    expect(page.locator("#curvature h2")).to_be_in_viewport(timeout=60_000)
    assert page.evaluate("location.hash") == "#curvature"


@pytest.mark.parametrize("width", WIDTHS)
def test_runs_stand_beside_one_another_or_below(tmp_path, show, width):
    runs = {f"seed {i} {LONG[:60]}": make_tree(seed=i, gain=0.03 * i) for i in range(3)}
    page = show(resonance.page(runs, tmp_path / "runs.html"), width)
    assert page.evaluate(FITS)
    assert page.evaluate(TOO_WIDE) == []
    assert page.locator("#runs tbody tr").count() == 3
    places = [box.bounding_box() for box in page.locator("#landscape figure").all()[:2]]
    is_beside = places[0]["y"] == pytest.approx(places[1]["y"], abs=2)
    assert is_beside == (width == "desktop")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_single_result_fits(tmp_path, show, width):
    surface = make_tree(text=LONG)["landscape"].to_dataset()
    page = show(resonance.page(surface, tmp_path / "surface.html"), width)
    assert page.evaluate(FITS)
    assert page.locator("figure svg").first.is_visible()
    assert page.locator(".surface canvas").evaluate(PAINTED) > 20


def test_no_name_becomes_markup(tmp_path, show):
    tree = make_tree(HOSTILE, text=" ".join(HOSTILE))
    tree.attrs |= {key: HOSTILE[5] for key in ("verdict_sentence", "verdict_rule", "verdict")}
    for name in ("report", "runs"):
        shown = tree if name == "report" else {text: make_tree(text=text) for text in HOSTILE}
        page = show(resonance.page(shown, tmp_path / f"{name}.html", title=HOSTILE[3]))
        assert page.title() == HOSTILE[3]
        assert not page.evaluate("'pwned' in window")
        strangers = "img, b, iframe, [onerror], [onmouseover], svg script, svg a"
        assert page.locator(strangers).count() == 0
        assert page.locator("script:not([type])").count() == 1

    names = page.locator("#runs tbody td:first-child").all_text_contents()
    assert names == HOSTILE
    # The script has run to its end, past all of these.
    assert page.locator("#runs th button").count() > 3
    assert np.isfinite(page.locator("#runs .beside").bounding_box()["width"])
