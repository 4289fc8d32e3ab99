"""The report in a real browser: it renders, its links work, nothing runs off the page or is fetched."""

import browser
import published
import pytest

from dare_job import workspace
from dare_job.publish import report

WIDTHS = (1366, 900, 400)
SECTIONS = ("cost", "week", "gates", "texts", "lengths", "timeline", "accepted", "latency", "pools", "router",
            "errors", "slowest", "worst", "drafted", "age", "run")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = published.rich(tmp_path_factory.mktemp("browser") / "out")
    for before in (1, 0, 1):  # the day before's again: now it links the next one
        report.write(folder, published.day(before))
    return folder


@pytest.fixture(scope="module")
def chromium():
    with browser.running() as running:
        yield running


@pytest.fixture
def page(chromium, out):
    """The newest report at 1366 x 768, with what the console said and what was asked of the network."""
    opened = chromium.new_page(viewport={"width": 1366, "height": 768}, reduced_motion="reduce")
    opened.said, opened.asked = [], []
    opened.on("console", lambda message: opened.said.append(message.text))
    opened.on("pageerror", lambda error: opened.said.append(str(error)))
    opened.on("dialog", lambda dialog: (opened.said.append(dialog.message), dialog.dismiss()))
    opened.on("request", lambda request: opened.asked.append(request.url))
    opened.goto(workspace.report_page(out, published.DAY).as_uri())
    yield opened
    opened.close()


def test_it_renders_without_a_word_on_the_console_and_from_one_file(page, out):
    assert page.title() == f"Knowledge of {published.DAY} – dare-job"
    assert [section.get_attribute("id") for section in page.locator("main > section").all()] == list(SECTIONS)
    assert all(section.is_visible() for section in page.locator("main > section").all())
    assert page.said == []
    asked = {url for url in page.asked if not url.startswith("data:")}
    assert asked == {workspace.report_page(out, published.DAY).as_uri()}


def test_the_first_screen_says_status_rows_errors_cost_and_what_is_unusual(page):
    for words in ("Published with warnings", "Rows", "Errors", "Speed-up", "2.50×",
                  "Needs attention", "9 rows (", "the median of the last 7 dates is"):
        box = page.get_by_text(words).first.bounding_box()
        assert box and box["y"] + box["height"] <= 768, words


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_runs_off_the_page(page, width):
    page.set_viewport_size({"width": width, "height": 768})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(_WIDER, ".tiles section") == 0


def test_tables_need_no_scrolling_on_a_laptop(page):
    assert page.evaluate(_WIDER, ".scroll") == 0


def test_every_chart_has_a_size_and_says_what_it_shows(page):
    charts = page.locator("svg").all()
    assert len(charts) > 20
    for chart in charts:
        box = chart.bounding_box()
        assert box["width"] > 50 and box["height"] > 20
        assert chart.get_attribute("role") == "img" and len(chart.get_attribute("aria-label")) > 10
    assert page.evaluate("""[...document.querySelectorAll('svg rect')].every(r => r.height.baseVal.value >= 0
        && r.width.baseVal.value > 0)""")


def test_links_lead_somewhere(page):
    inside = [link.get_attribute("href") for link in page.locator("a[href^='#']").all()]
    assert len(inside) > 10 and all(page.locator(href).count() == 1 for href in inside)
    page.click("nav a[href='#texts']")
    assert abs(page.locator("#texts").bounding_box()["y"]) < 40
    page.click("header span a[href$='index.html']")
    assert page.title() == f"Knowledge of {published.day(1)} – dare-job"
    page.click("header span a[href$='index.html']")
    assert page.title() == f"Knowledge of {published.DAY} – dare-job"


def test_the_index_lists_all_dates_and_leads_to_their_reports(page):
    page.click("text=all dates")
    assert page.title() == "Published dates – dare-job"
    assert page.locator("tbody tr").count() == 8 and page.locator("tbody a").count() == 2
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 768})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click(f"tbody a:text('{published.DAY}')")
    assert page.title() == f"Knowledge of {published.DAY} – dare-job" and page.said == []


def test_texts_stand_beside_their_prompts(page):
    rows = page.locator(".samples > details")
    assert rows.count() == 50
    prompt, text = rows.first.locator(".beside > div").all()
    assert prompt.bounding_box()["y"] == text.bounding_box()["y"]
    assert prompt.bounding_box()["x"] < text.bounding_box()["x"]
    last = rows.nth(49)
    assert not last.locator(".beside").is_visible()
    last.locator("summary").first.click()
    assert last.locator(".beside").is_visible()
    page.set_viewport_size({"width": 400, "height": 768})
    assert prompt.bounding_box()["y"] < text.bounding_box()["y"]


def test_hostile_text_is_shown_and_does_nothing(page):
    assert page.locator("script").count() == 0 and page.locator("img").count() == 0
    assert page.get_by_text(published.HOSTILE_ID).count() >= 1
    assert page.get_by_text("<script>document.title='broken'</script>").count() >= 1


def test_drafted_spans_make_up_the_text(page):
    articles = page.locator(".texts article").all()
    assert len(articles) >= 3
    for article in articles:
        assert article.locator("mark").count() + article.locator("b.own").count() > 5
        assert published.WORDS[:40] in article.locator(".text").inner_text()
    assert page.locator("mark.draft").count() > 5 and page.locator("mark.old").count() > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_enough(page, scheme):
    """4.5 to 1 for text, as WCAG 2 AA asks."""
    page.emulate_media(color_scheme=scheme)
    worst = page.evaluate(_CONTRAST)
    assert worst["ratio"] >= 4.5, worst


_WIDER = "name => [...document.querySelectorAll(name)].filter(e => e.scrollWidth > e.clientWidth).length"
_CONTRAST = """() => {
  const linear = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = c.map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const parse = s => (s.match(/[\\d.]+/g) || []).map(Number);
  const back = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0.99) return c.slice(0, 3); } return [255, 255, 255]; };
  let worst = {ratio: 99};
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || e.closest('title, style')) continue;
    const style = getComputedStyle(e), fore = parse(e.closest('svg') ? style.fill : style.color).slice(0, 3);
    const [a, b] = [light(fore), light(back(e))].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
    if (ratio < worst.ratio) worst = {ratio, text: e.textContent.slice(0, 40), tag: e.tagName};
  }
  return worst;
}"""
