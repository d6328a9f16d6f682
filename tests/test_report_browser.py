"""The report in a real Chromium, at the width of a desk and of a phone, in light, dark and print.

Without one these tests are skipped, each saying so; they fail where one was asked for: by
`-m browser`, by BATCH_INVARIANCE_CHROMIUM, or by BATCH_INVARIANCE_REQUIRE_BROWSER=1.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from batch_invariance.cli import report
from batch_invariance.formats.html_style import DARK, LIGHT
from browser_equipment import CHROMIUM_VARIABLE, REQUIRE_VARIABLE, Chromium, find_chromium
from ci_fixtures import call
from report_fixtures import make_folder

pytestmark = pytest.mark.browser

WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def chromium(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Chromium:
    path, why_not = find_chromium()
    if path is not None:
        return Chromium(path, tmp_path_factory.mktemp("chromium"))
    asked = os.environ.get(REQUIRE_VARIABLE) == "1" or os.environ.get(CHROMIUM_VARIABLE)
    if asked or pytestconfig.getoption("markexpr") == "browser":
        pytest.fail(f"browser test asked for: {why_not}", pytrace=False)
    pytest.skip(f"browser test: {why_not}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("certs"))


@pytest.fixture
def page(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    out = tmp_path / "report.html"
    assert call(report, capsys, folder, "-o", out).code == 0
    return out


def rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


@pytest.mark.parametrize("width", WIDTHS)
def test_all_is_seen_and_nothing_sticks_out_or_runs(
    chromium: Chromium, page: Path, width: int
) -> None:
    """Wide tables and charts scroll in frames of their own, unfolded cells included; no word of a
    cell is cut off or as small as nothing; what others wrote stays text."""
    script = """
        const all = [...d.querySelectorAll('details')], folded = all.every((x) => !x.open);
        all.forEach((x) => { x.open = true });
        const box = (x) => x.getBoundingClientRect(), root = d.documentElement;
        const show = (list) => list.map((x) => x.outerHTML.slice(0, 120));
        const out = [...d.querySelectorAll('body *')].filter((x) =>
            !x.parentElement.closest('.x, svg') && box(x).right > root.clientWidth + 1);
        const small = [...d.querySelectorAll('p, dd, td, li, h1, h2, h3, h4')].filter((x) =>
            x.textContent.trim() && (box(x).height < 8 || box(x).width < 8));
        return {folded, client: root.clientWidth, scroll: root.scrollWidth, out: show(out),
            small: show(small), alarms: w.alarms, scripts: d.scripts.length,
            images: d.images.length};
    """
    assert chromium.measure(page.read_text("utf-8"), width, script) == {
        "folded": True,
        "client": width,
        "scroll": width,
        "out": [],
        "small": [],
        "alarms": [],
        # The test's own spy.
        "scripts": 1,
        "images": 0,
    }


def test_a_link_of_the_matrix_unfolds_its_cell(chromium: Chromium, page: Path) -> None:
    text = page.read_text("utf-8")
    link = re.search(r'class="cell r" href="(#c\d+)"', text)
    assert link is not None
    opened = "return [...d.querySelectorAll('details[open]')].map((x) => x.className)"
    assert chromium.measure(text, 1280, opened, fragment=link[1]) == ["c cr"]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (500, True)])
def test_the_colours_of_every_standing_are_on_the_page(
    chromium: Chromium, page: Path, width: int, dark: bool
) -> None:
    palette = DARK if dark else LIGHT
    picture = chromium.screenshot(page, width, 2600, dark, scale=0.5)
    assert picture.width == width // 2
    colours = picture.colours()
    assert max(colours, key=lambda colour: colours[colour]) == rgb(palette["bg"])
    for letter in "gaurn":
        assert colours.get(rgb(palette[f"{letter}-bg"]), 0) > 100


def test_folded_cells_are_unfolded_on_paper(chromium: Chromium, page: Path) -> None:
    printed = chromium.pdf(page)
    folded = page.with_name("folded.html")
    rule = "details::details-content{"
    text = page.read_text("utf-8")
    assert rule in text
    folded.write_text(text.replace(rule, "details::no-such{"), "utf-8")
    assert len(printed) > 3 * len(chromium.pdf(folded))
