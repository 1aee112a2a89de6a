"""The page in a real browser: it fetches nothing, can be read by everybody, on any screen and on paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reprokit.evidence.report import html
from reprokit.evidence.report.gather import gather
from reprokit.model.outputs import OutputFile
from tests.browser import HOME, SCREENS, browser, opened, picture, violations
from tests.support import rest_slow
from tests.verify.runs import Building, digest, replayed, tensor, training

pytestmark = pytest.mark.skipif(not (HOME / "chrome").exists(), reason="no browser: make test fetches one by npm")


SHAPES = """
Object.fromEntries(["identical", "different"].flatMap(verdict => {
  const mark = document.querySelector(`.mark.${verdict}`);
  if (!mark) return [];
  const shape = getComputedStyle(mark, "::before");
  return [[verdict, [shape.borderTopLeftRadius, shape.transform, shape.borderTopWidth].join(" ")]];
}))
"""


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with browser() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of two equal runs, of two that differ with many tensors, and of one run with long names."""
    directory = tmp_path_factory.mktemp("pages")

    def written(name: str, *runs: Building) -> Path:
        path = directory / f"{name}.html"
        path.write_text(html.page(gather([run.write() for run in runs])))
        return path

    left = training(directory / "left")
    differing = training(directory / "differing")
    end: dict[str, Any] = {"at": "end", "epoch": None, "object": "model#1", "class": "Net"}
    differing.add("weights", **end, digest=digest("all"), tensors=[tensor(f"l{n}", str(n)) for n in range(40)])
    other = replayed(differing, directory / "other")
    other.outputs[0] = OutputFile(path="model.pt", size=640, digest=digest("another"))
    many = training(directory / "many")
    many.add("weights", **end, digest=digest("all"), tensors=[tensor(f"l{n}", str(n)) for n in range(3000)])
    alone = training(directory / "alone")
    alone.run.command = ["python", "x" * 3000]
    return {
        "equal": written("equal", left, replayed(left, directory / "right")),
        "different": written("different", differing, other),
        "alone": written("alone", alone),
        "many": written("many", many, replayed(many, directory / "many-again")),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", rest_slow(["different", "equal"], extended=["alone"]))
def test_a_page_is_whole_and_accessible(name: str, pages: dict[str, Path], started: Any, tmp_path: Path) -> None:
    for scheme, width in SCREENS if name == "different" else SCREENS[::3]:
        with opened(started, pages[name], scheme, width) as page:
            assert violations(page) == []
            picture(page, tmp_path / f"{name}-{scheme}-{width}.png")
            # What came out is told by shapes too, which are there on paper and whatever glyphs the fonts have.
            shapes = page.evaluate(SHAPES)
            assert set(shapes) == {"identical", "different"} if name == "different" else "different" not in shapes
            assert len(set(shapes.values())) == len(shapes)


@pytest.mark.slow
def test_digests_are_short_on_the_screen_and_whole_on_paper(pages: dict[str, Path], started: Any) -> None:
    with opened(started, pages["different"], "light", 1280) as page:
        shown = page.locator(".digest").first
        whole = shown.get_attribute("title")
        assert len(whole.removeprefix("sha256:")) == 64
        assert shown.inner_text() == f"{whole[:-52]}…"
        page.emulate_media(media="print")
        assert shown.inner_text() == ""
        assert page.evaluate("getComputedStyle(document.querySelector('.digest'), '::after').content") == f'"{whole}"'


def test_sections_fold_and_the_contents_lead_to_them(pages: dict[str, Path], started: Any) -> None:
    with opened(started, pages["different"], "light", 1280) as page:
        links = page.locator("nav a")
        assert links.count() == page.locator("details[open]").count() == 9
        page.locator("summary").first.click()
        assert not page.locator("section code.command").first.is_visible()
        page.emulate_media(media="print")
        assert page.locator("section code.command").first.is_visible()  # paper has what is folded


def test_a_filter_shows_what_differs_and_curves_their_values(pages: dict[str, Path], started: Any) -> None:
    """Without scripts: by a style alone."""
    with opened(started, pages["different"], "light", 1280) as page:
        everything = page.locator("tr.came:visible").count()
        page.locator("#show-differs").check()
        shown = page.locator("tr.came:visible")
        assert 0 < shown.count() < everything
        assert shown.locator(".mark.identical").count() == 0
        assert shown.locator(".mark.different").count() > 0
        page.emulate_media(media="print")
        assert shown.count() == everything  # paper does not tell what was chosen
        page.emulate_media(media="screen")
        page.locator("#show-all").check()
        assert page.locator("tr.came:visible").count() == everything
        overview = page.locator(".whole").first
        assert overview.evaluate("one => one.scrollHeight <= one.clientHeight")
        values = page.locator(".at text").first
        assert not values.is_visible()
        page.locator(".at rect").first.hover()
        assert values.is_visible()
        assert (values.text_content() or "").startswith("step ")


@pytest.mark.slow
def test_without_scripts_and_on_paper_all_of_it_is_there(pages: dict[str, Path], started: Any, tmp_path: Path) -> None:
    context = started.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["many"].as_uri())
    text = page.inner_text("main")
    assert "l0 " in text.replace("\t", " ")
    assert "more rows, none of which differs, are not shown here" in text
    paper = page.pdf(path=str(tmp_path / "paper.pdf"))
    pages_of_paper = paper.count(b"/Type /Page\n") + paper.count(b"/Type /Page ")
    assert 10 < pages_of_paper < 40  # the long table is not cut at a screen, and can be printed
    context.close()
