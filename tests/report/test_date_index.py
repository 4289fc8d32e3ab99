"""The index of all dates: what it lists, what damaged dates look like, and that removed dates vanish."""

import json
import re

import published
import pytest

from dare_job.publish import report
from dare_job.publish.report import date_index
from dare_job.publish.report.nights import Night
from dare_job.publish.snapshots.clean import clean
from dare_job.workspace import report_page, reports_index


def listed(out) -> dict[str, str]:
    """The rows of the index by date, newest first, as they are seen."""
    html = reports_index(out).read_text(encoding="utf-8")
    rows = re.findall(r"<tr><th scope=\"row\".*?</tr>", html, re.DOTALL)
    seen = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in rows]
    return {row.split()[0]: row for row in seen}


@pytest.fixture
def out(tmp_path):
    for before in range(3):
        dt = published.day(before)
        published.publish(tmp_path, [published.plain(f"u{n}", dt=dt) for n in range(5 + before)], [], dt,
                          **published.times())
    report.write(tmp_path, published.DAY)
    return tmp_path


def manifest_of(out, before: int, entity: str = "user"):
    return out / "knowledge" / f"entity={entity}" / f"dt={published.day(before)}" / "_manifest.json"


def test_each_date_has_a_row_and_dates_with_a_report_have_a_link(out):
    rows = listed(out)
    assert list(rows) == [published.day(n) for n in range(3)]
    assert rows[published.DAY].startswith(f"{published.DAY} 5 5 0 80 2.50× 0.00 – 2.7 min 4.0 min 0.20 publi")
    html = reports_index(out).read_text(encoding="utf-8")
    assert re.findall(r'href="(dt=[^"]+)"', html) == [f"dt={published.DAY}/index.html"]
    assert (reports_index(out).parent / f"dt={published.DAY}/index.html") == report_page(out, published.DAY)
    assert html.count('class="nights"') == 8  # no gate was checked, so it has no chart


@pytest.mark.parametrize("damage", ["{", "[]", '{"counts": 3}', "null", '{"settings": {"cost": 1}}'])
def test_a_damaged_manifest_costs_only_its_own_row(out, damage):
    manifest_of(out, 1).write_text(damage)
    manifest_of(out, 2, "item").unlink()
    date_index.write(out)
    rows = listed(out)
    assert "published" in rows[published.DAY] and "2.50×" in rows[published.DAY]
    assert "items are not published" in rows[published.day(2)]
    assert published.day(1) in rows and ("damaged" in rows[published.day(1)] or damage.startswith('{"se'))


def test_a_removed_date_vanishes(out):
    clean(out, keep=2)
    assert list(listed(out)) == [published.day(0), published.day(1)]


def test_a_date_published_while_the_index_is_written_is_in_it(out, monkeypatch):
    render, later = date_index.render, published.day(-1)

    def slow(*arguments):
        page = render(*arguments)
        if not (out / "knowledge" / "entity=user" / f"dt={later}").exists():
            published.publish(out, [published.plain("u", dt=later)], [], later)
        return page

    monkeypatch.setattr(date_index, "render", slow)
    date_index.write(out)
    assert list(listed(out))[0] == later


def test_an_index_that_cannot_be_written_is_a_warning(out, monkeypatch, caplog):
    monkeypatch.setattr("dare_job.publish.report.date_index._LOG.propagate", True)
    before = reports_index(out).read_bytes()
    monkeypatch.setattr(date_index, "render", lambda *_: 1 / 0)
    report.write(out, published.DAY)
    assert "the index of the reports" in caplog.text and "dare-job report --out" in caplog.text
    assert reports_index(out).read_bytes() == before


def test_ids_and_folders_are_escaped(tmp_path):
    folder = tmp_path / "<b>x"
    gate = {"rows": 1, "of": 9, "failed": True, "first": [], "why": None, "value": 0.5, "limit": 0.1}
    published.publish(folder, [published.plain("u")], [], gates={"<script>": gate})
    date_index.write(folder)
    html = reports_index(folder).read_text(encoding="utf-8")
    assert "<script" not in html and "<b>x" not in html and "&lt;script&gt; of users 50 %, limit 10 %" in html


@pytest.mark.parametrize(("gates", "check", "level"), [
    ({"loop": (0.01, 0.02), "short": (0.019, 0.02)}, "short", 0.95),
    ({"length_ratio": (0.8, 1.3), "loop": (0.01, 0.02)}, "length_ratio", pytest.approx(0.25 / 0.3)),
    ({"length_ratio": (1.0, 1.3), "loop": (0.0, 0.0)}, "length_ratio", 0.0),
    ({"loop": (0.001, 0.0), "short": (0.02, 0.02)}, "loop", 2.0),
    ({"loop": (None, 0.02), "short": (0.5, None)}, None, None)])
def test_the_gate_that_is_nearest_to_its_limit(gates, check, level):
    manifest = {"gates": {name: {"value": value, "limit": limit} for name, (value, limit) in gates.items()}}
    found = date_index.worst_gate(Night(published.DAY, {"item": json.loads(json.dumps(manifest))}))
    assert (found and found.check, found and found.level) == (check, level)
