"""The studio in a real browser, used as by a person in each part: by mouse, by keyboard, and with axe-core.

It takes Playwright and a chromium of the system (`apt-get install chromium`), and is skipped without them. With
`PICTURES=docs/pictures` it also makes the pictures of the docs; with `WORKSPACE=FOLDER` it does so on what lies there,
a folder with a run `demo`, an index and a map.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import unmask
from tests.command_line import PATIENCE

pytestmark = pytest.mark.slow
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (pip install playwright)")
pytest.importorskip("uvicorn", reason="the studio's extra is not installed")
if CHROMIUM is None:
    pytest.skip("there is no chromium (apt-get install chromium)", allow_module_level=True)

expect = playwright.expect
AXE = (Path(__file__).parent / "vendor" / "axe.js").read_text(encoding="utf-8")
PICTURES = os.environ.get("PICTURES")
PARTS = ("masks", "predict", "runs", "corpus", "search", "grammar", "space")
MARKUP = "<img src=x onerror=\"document.title='broken'\"><b>the king</b> & the queen at sea."


@pytest.fixture(scope="module")
def workspace(run: unmask.Run, corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, an index, a map, a comparison and texts."""
    if named := os.environ.get("WORKSPACE"):
        return Path(named)
    root = tmp_path_factory.mktemp("workspace")
    shutil.copytree(run.folder, root / "demo")
    shutil.copy(corpus_file, root / "corpus.txt")
    model, lines = root / "demo" / "model", corpus_file.read_text(encoding="utf-8").splitlines()
    unmask.Index.build(model, [root / "corpus.txt"], out=root / "index")
    unmask.embed(model, [line for line in lines if line][:60], out=root / "map.parquet", map=True)
    budget: dict[str, Any] = {"steps": 6, "seeds": 2, "base": "tiny", "settings": ["model.num_layers=1"]}
    unmask.compare(["random", "span"], data=root / "demo" / "data", out=root / "compared", **budget)
    return root


@contextmanager
def studio(folder: Path, *paths: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A studio in a process of its own, and its address. It writes into a file, so that no full pipe holds it up."""
    command = [sys.executable, "-m", "unmask", "studio", *map(str, paths), "--no-browser", "--port", "0"]
    said = folder / "stderr.txt"
    with said.open("w") as file, subprocess.Popen(command, stderr=file, stdout=subprocess.PIPE, text=True) as process:
        begin = time.monotonic()
        while not (address := re.search(r"http://\S+", said.read_text(encoding="utf-8"))):
            assert process.poll() is None, said.read_text(encoding="utf-8")
            assert time.monotonic() - begin < PATIENCE
            time.sleep(0.1)
        try:
            yield address[0], process
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def server(
    workspace: Path, corpus_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with studio(tmp_path_factory.mktemp("server"), workspace, corpus_file) as (address, process):
        yield address, process
        process.terminate()
        assert "closed" in process.communicate(timeout=30)[0]
        assert process.returncode == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Any, server: tuple[str, Any]) -> Iterator[Any]:
    """A page that must have written nothing to the console, and contacted no other host, when a test is over."""
    context = browser.new_context(viewport={"width": 1200, "height": 800}, color_scheme="light")
    opened, said = context.new_page(), list[str]()
    opened.on("console", lambda message: said.append(message.text))
    opened.on("response", lambda answer: said.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: said.append(request.url) if "//127.0.0.1:" not in request.url else None)
    opened.goto(server[0])
    expect(opened.locator("h1")).to_be_visible()
    yield opened
    context.close()
    assert said == []


def go(page: Any, part: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name=part.title()).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(part.title())
    settled(page)


def settled(page: Any) -> None:
    page.wait_for_timeout(300)
    expect(page.locator(".busy[role=status]:not(:empty)")).to_have_count(0, timeout=60_000)


def picture(page: Any, part: str) -> None:
    if PICTURES:
        settled(page)
        page.screenshot(path=Path(PICTURES) / f"studio-{part}.png")


def looked_at(page: Any, part: str) -> None:
    """Nothing is wide for a phone, and axe-core finds nothing, in either scheme."""
    for scheme, width in (("light", 1200), ("dark", 1200), ("light", 390)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (part, width)
        found = page.evaluate(f"{AXE}; axe.run(document, {{resultTypes: ['violations']}})")["violations"]
        assert [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found] == []
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1200, "height": 800})


def test_masks_are_drawn_by_epoch_and_rate_and_saved(page: Any, browser: Any, tmp_path: Path) -> None:
    picture(page, "masks")
    page.get_by_label("Text", exact=True).fill(MARKUP)
    settled(page)
    span = page.get_by_role("region", name="whole_word", exact=True)
    expect(span.locator("b")).to_have_count(0)
    before = span.inner_html()
    page.get_by_role("button", name="Next epoch").click()
    settled(page)
    assert span.inner_html() != before
    assert page.title() == "Masks: unmask studio"  # no markup ran
    page.get_by_label("Rate:").fill("0.9")
    settled(page)
    expect(span).to_contain_text("90.0 % expected")
    page.get_by_role("button", name="Units and").click()
    expect(span.locator("sup").first).to_have_text("90")
    page.get_by_label("Rate:").fill("0.15")
    page.get_by_role("button", name="How often").click()
    settled(page)
    expect(span).to_contain_text("over 200 epochs")
    page.get_by_role("button", name="Masks", exact=True).click()
    looked_at(page, "masks")
    with page.expect_download() as saved:
        page.get_by_role("button", name="save as one file").click()
    saved.value.save_as(tmp_path / saved.value.suggested_filename)
    alone = browser.new_context(offline=True).new_page()
    alone.goto((tmp_path / "masks.html").as_uri())
    expect(alone.get_by_role("heading", name="whole_word")).to_be_visible()
    expect(alone.locator("script, link, img")).to_have_count(0)
    alone.context.close()


def test_words_are_hidden_by_a_click_and_by_keys(page: Any) -> None:
    go(page, "predict")
    page.locator(".word").nth(8).click()
    page.get_by_label("Compare with").select_option(index=3)
    picture(page, "predict")
    page.get_by_label("Compare with").select_option(index=0)
    page.get_by_role("button", name="Edit the text").click()
    page.get_by_label("Text", exact=True).fill("हिन्दी भाषा café 👩🏽‍🚀!")
    expect(page.locator(".word")).to_have_text(["हिन्दी", "भाषा", "café", "👩🏽‍🚀", "!"])
    page.get_by_label("Text", exact=True).fill("東京タワー、ที่นี่ USA")
    expect(page.locator(".word")).to_have_text([*"東京タワー、", "ที่", "นี่", "USA"])
    page.get_by_label("Text", exact=True).fill("مرحبا يا BERT!")
    expect(page.locator(".word")).to_have_text(["مرحبا", "يا", "BERT", "!"])
    arabic, _, latin, _ = (page.locator(".word").nth(number).bounding_box()["x"] for number in range(4))
    assert latin < arabic, "the paragraph runs from right to left"
    page.get_by_label("Text", exact=True).fill("the cat sees the king at sea .")
    page.get_by_role("button", name="Edit the text").click()
    words = page.locator(".word")
    words.nth(1).click()
    settled(page)
    filled = page.get_by_role("region", name="Predictions of").first
    expect(filled).to_contain_text("“cat”")
    words.nth(0).focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    settled(page)
    expect(words.nth(4)).to_have_attribute("aria-pressed", "true")
    expect(filled).to_contain_text("all masks together")
    words.nth(1).click()
    settled(page)
    expect(filled).not_to_contain_text("“cat”")
    page.get_by_label("Compare with").select_option(index=2)
    settled(page)
    expect(page.get_by_role("region", name="Predictions of")).to_have_count(2)
    looked_at(page, "predict")
    page.get_by_role("button", name="Surprise").click()
    settled(page)
    expect(page.get_by_role("region", name="Largest surprises").first).to_contain_text("nats")


def test_a_run_is_forecast_started_stopped_and_resumed(page: Any, workspace: Path) -> None:
    go(page, "runs")
    picture(page, "runs")
    page.get_by_text("Start a run").click()
    page.get_by_label("Folder, below").fill("live")
    page.get_by_label("Text", exact=True).select_option(label=f"{workspace.name}/demo/data")
    page.get_by_label("Recipe").select_option(label="tiny")
    page.get_by_label("or steps").fill("40")
    page.get_by_label("Your sentences").fill("the cat sees the king at sea .")
    page.get_by_role("button", name="Show the command").click()
    expect(page.locator("pre").first).to_contain_text("unmask pretrain")
    page.get_by_role("button", name="Forecast").click()
    expect(page.locator("pre").first).to_contain_text("parameters", timeout=120_000)
    page.get_by_role("button", name="Start", exact=True).click()
    process = page.get_by_role("region", name="Process of")
    expect(process.get_by_text("running")).to_be_visible(timeout=60_000)
    expect(page.get_by_role("region", name="Predictions of")).to_contain_text("Your sentences", timeout=120_000)
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Resume").click(timeout=120_000)
    expect(process.get_by_text("running")).to_be_visible(timeout=60_000)
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Resume").wait_for(timeout=120_000)
    page.get_by_label(f"show {workspace.name}/demo").check()
    expect(page.get_by_role("region", name="Differences")).to_contain_text("model.hidden_size")
    page.get_by_role("button", name="Steps", exact=True).click()
    shutil.rmtree(workspace / "live")
    expect(page.get_by_text("it was removed")).to_be_visible(timeout=10_000)
    page.get_by_role("button", name="Remove from the page").click()
    looked_at(page, "runs")


def test_a_comparison_opens_in_many_tabs(browser: Any, workspace: Path, tmp_path: Path) -> None:
    """More than the six connections of a browser: hidden tabs hold none."""
    if not (workspace / "compared").is_dir():
        pytest.skip("there is no comparison in this workspace")
    with studio(tmp_path, workspace / "compared") as (address, _):
        context = browser.new_context()
        for _ in range(8):
            page = context.new_page()
            page.goto(address)
            expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
            compared = page.get_by_role("region", name="Comparison")
            expect(compared.get_by_role("img", name="random - span")).to_be_visible(timeout=30_000)
            expect(page.get_by_role("region", name="Curves of").locator("canvas")).to_be_visible(timeout=30_000)
            hidden = "Object.defineProperty(document, 'hidden', { value: true })"
            page.evaluate(f"{hidden}; document.dispatchEvent(new Event('visibilitychange'))")
        context.close()


def test_a_corpus_says_why_a_text_is_held_out(page: Any) -> None:
    go(page, "corpus")
    page.get_by_role("button", name="why here?").first.click()
    expect(page.get_by_text("held out: the hash")).to_be_visible(timeout=30_000)
    page.get_by_role("button", name="Training").click()
    settled(page)
    page.get_by_role("button", name="Later").click()
    settled(page)
    expect(page.get_by_text("21 to")).to_be_visible()
    page.get_by_label("Text", exact=True).fill("the cat")
    settled(page)
    expect(page.get_by_role("region", name="Tokenizer")).to_contain_text("tokens")
    looked_at(page, "corpus")


def test_hits_mark_the_words_of_the_query(page: Any) -> None:
    go(page, "search")
    page.get_by_label("Query").fill("the ship at sea")
    settled(page)
    expect(page.get_by_role("region", name="words (BM25)").locator("mark").first).to_be_visible()
    looked_at(page, "search")


def test_pairs_are_edited_and_scored(page: Any) -> None:
    go(page, "grammar")
    page.get_by_role("button", name="Add a pair").click()
    page.get_by_label("Right sentence 3").fill("the cat sees the king .")
    page.get_by_label("Wrong sentence 3").fill("cat the king sees the .")
    page.get_by_role("button", name="Add a pair").click()
    for side in ("Right", "Wrong"):
        page.get_by_label(f"{side} sentence 4").fill("the king .")
    settled(page)
    expect(page.get_by_text("of 4 pairs")).to_be_visible()
    expect(page.get_by_text("= 0.00")).to_be_visible()
    looked_at(page, "grammar")


def test_a_map_shows_the_nearest_texts(page: Any) -> None:
    go(page, "space")
    page.get_by_label("Find words").fill("the")
    page.get_by_role("button", name="choose").first.click()
    expect(page.get_by_role("region", name="Nearest texts").locator(".hit").first).to_be_visible()
    page.get_by_role("button", name="Zoom in").click()
    expect(page.get_by_text("1.5 times")).to_be_visible()
    looked_at(page, "space")
