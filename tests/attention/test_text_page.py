"""Attention of text as a page: what it says, and how it behaves in a browser."""

import re
import shutil

import numpy as np
import pytest
import torch
import xarray as xr
from playwright.sync_api import sync_playwright
from torch import nn

import attention
from attention._plots import text_page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="needs Chromium: apt-get install chromium, or your system's package"
)
HOSTILE = [
    "</script><script>window.bad=1</script>",
    '"><img src=x onerror="window.bad=1">',
    "{{ 7 * 7 }}${bad}`",
    "</div>&lt;b&gt;",
    "\u202eright to left",
    "\u2028",
    "a\nb",
    " ",
    "",
    "x" * 300,
]


def make_maps(n, n_layers=3, n_heads=2, *, causal=True, names=None):
    generator = np.random.default_rng(0)
    weight = generator.uniform(size=(1, n_layers, n_heads, n, n)) ** 4
    if causal:
        weight *= np.tri(n)
    weight /= weight.sum(-1, keepdims=True)
    return xr.Dataset(
        {"weight": (("sample", "layer", "head", "query", "key"), weight)},
        coords={
            "layer": names or [f"blocks.{i}" for i in range(n_layers)],
            "head": range(n_heads),
            "query": range(n),
            "key": range(n),
        },
    )


def test_the_table_has_the_mean_over_layers_and_heads():
    maps = make_maps(5)
    page = attention.html_text(maps, list("abcde"))
    mean = maps["weight"].mean(("sample", "layer", "head")).values

    rows = re.findall(r"<tr><td>(\d) (.)</td><td>(.*?)</td></tr>", page)
    assert [token for _, token, _ in rows] == list("abcde")
    for query, (_, _, text) in enumerate(rows):
        order = np.argsort(-mean[query], kind="stable")[:3]
        assert text == ", ".join(f"{'abcde'[k]} ({k}) {mean[query, k]:.3f}" for k in order)


def test_what_capture_gives_can_be_drawn_as_it_is():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    maps = attention.capture(model, torch.randn(2, 4, 8), queries="all", maps=True)
    page = attention.html_text(maps, list("abcd"), sample=1)

    mean = maps["weight"].isel(sample=1, layer=0).mean("head").values
    assert f"({mean[2].argmax()}) {mean[2].max():.3f}" in page
    assert '<option value="0">self_attn</option>' in page


def test_a_shorter_text_of_a_batch_has_no_room_after_its_end():
    maps = make_maps(6)
    maps["weight"][..., 4:, :] = np.nan
    maps["weight"][..., 4:] = np.nan
    assert attention.html_text(maps, list("abcd")).count('data-i="') == 4
    with pytest.raises(ValueError, match=r"`tokens`: expected one string for each of 6 queries"):
        attention.html_text(maps, list("abc"))


def test_what_does_not_fit_is_refused(monkeypatch):
    maps = make_maps(4)
    with pytest.raises(ValueError, match=r"`maps`: expected `weight` over layer, head, query"):
        attention.html_text(maps.isel(query=0), list("abcd"))
    with pytest.raises(ValueError, match=r"`tokens`.* got 5"):
        attention.html_text(maps, list("abcde"))
    with pytest.raises(ValueError, match=r"`sample`: expected at most 0"):
        attention.html_text(maps, list("abcd"), sample=1)

    prefixed = maps.assign_coords(n_prefix=("layer", [1, 1, 1])).assign_attrs(keys="patches")
    with pytest.raises(ValueError, match=r'capture with keys="all"'):
        attention.html_text(prefixed, list("abcde"))

    monkeypatch.setattr(text_page, "_MOST_WEIGHTS", maps["weight"].size - 1)
    with pytest.raises(ValueError, match=r"96 weights are too many for a page"):
        attention.html_text(maps, list("abcd"))


def test_names_and_tokens_are_text():
    maps = make_maps(len(HOSTILE), names=['"><script>window.bad=1</script>', "b", "c"])
    page = attention.html_text(maps, HOSTILE, title="<i>title</i>")
    assert page.count("<script") == 1
    assert page.count("</script") == 1
    assert "<img" not in page
    assert "<i>" not in page


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER)
        yield opened
        opened.close()


@pytest.fixture
def show(browser, tmp_path):
    """Open a page; nothing may be fetched besides it, and nothing complained of."""
    contexts, asked, said = [], [], []

    def opened(html, **settings):
        path = tmp_path / "text.html"
        path.write_text(html, encoding="utf-8")
        contexts.append(browser.new_context(**settings))
        page = contexts[-1].new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(path.as_uri(), wait_until="load")
        page.set_default_timeout(60_000)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert {url for url in asked if not url.startswith("data:")} <= {
        (tmp_path / "text.html").as_uri()
    }
    assert said == []


def opacities(page):
    """How strongly each token is coloured, from 0 to 1."""
    colors = page.eval_on_selector_all(
        "#text span", "spans => spans.map(span => getComputedStyle(span).backgroundColor)"
    )
    numbers = [re.findall(r"[\d.]+", color) for color in colors]
    return np.array([float(parts[3]) if len(parts) == 4 else 1.0 for parts in numbers]) / 0.75


@needs_browser
def test_pointing_at_a_token_colours_where_it_looks(show):
    maps = make_maps(6)
    page = show(attention.html_text(maps, list("abcdef")))
    weight = maps["weight"].values[0]

    def expect(values):
        np.testing.assert_allclose(opacities(page), values / values.max(), atol=0.02)

    expect(weight.mean((0, 1))[5])  # the last token at first

    spans = page.locator("#text span")
    spans.nth(3).hover()
    expect(weight.mean((0, 1))[3])
    page.select_option("#layer", "2")
    expect(weight[2].mean(0)[3])
    page.select_option("#head", "1")
    expect(weight[2, 1, 3])
    most = int(weight[2, 1, 3].argmax())
    assert page.inner_text("#said").startswith(
        f"token 3 d looks at {'abcdef'[most]} ({most}) {weight[2, 1, 3].max():.2f}"
    )

    page.select_option("#way", "from")
    expect(weight[2, 1, :, 3])

    # A click holds the token; arrows go on from it.
    spans.nth(3).click()
    spans.nth(0).hover()
    expect(weight[2, 1, :, 3])
    spans.nth(3).press("ArrowRight")
    expect(weight[2, 1, :, 4])


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_can_tap_and_hostile_tokens_stay_text(show, scheme):
    maps = make_maps(len(HOSTILE), names=['"><script>window.bad=1</script>' * 5, "b", "c"])
    page = show(
        attention.html_text(maps, HOSTILE),
        viewport={"width": 390, "height": 844},
        is_mobile=True,
        has_touch=True,
        color_scheme=scheme,
    )
    spans = page.locator("#text span")
    assert spans.count() == len(HOSTILE)
    for i, token in enumerate(HOSTILE):
        spans.nth(i).tap()
        assert spans.nth(i).get_attribute("class") == "here"
        shown = {"a\nb": "a\u21b5b", "": "\u2205"}.get(token, token)
        assert spans.nth(i).evaluate("span => span.textContent") == shown
        assert shown in page.locator("#said b").first.evaluate("part => part.textContent")
    assert page.evaluate("window.bad") is None
    assert page.locator("img").count() == 0
    assert page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )


@needs_browser
def test_without_scripts_the_text_and_the_table_are_there(show):
    page = show(
        attention.html_text(make_maps(4), ["so ", "be", " it", "!"]), java_script_enabled=False
    )
    assert page.inner_text("#text") == "so be it!"
    assert page.locator("table tr").count() == 5
    assert page.locator("table").is_visible()
    assert not page.locator("#choices").is_visible()


@needs_browser
def test_unrecorded_rows_say_so(show):
    maps = make_maps(3)
    maps["weight"][..., 1, :] = np.nan
    page = show(attention.html_text(maps, list("abc")))
    page.locator("#text span").nth(1).hover()
    assert page.inner_text("#said") == "token 1 b: nothing was recorded"
