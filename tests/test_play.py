"""The page to play with, in a real browser: it says what PyTorch says, a hand can draw on it, and nothing leaves it."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from eow.config import resolve
from eow.data import Dataset, load
from eow.data.loader import Transform
from eow.errors import EowError
from eow.models.layers import OpenLinear
from eow.play import build, page, serve
from eow.play.server import make_server
from eow.runs import Run, make_method
from eow.runs import load as load_run

Stroke = np.ndarray  # (points, 2), x to the right and y down, in -1..1
BOTH = ("vanilla", "eow")


def arc(x: float, y: float, width: float, height: float, first: float, last: float) -> Stroke:
    """A part of an ellipse, in degrees, clockwise as y points down."""
    angle = np.radians(np.linspace(first, last, 25))
    return np.stack([x + width * np.cos(angle), y + height * np.sin(angle)], 1)


def joined(*parts: Any) -> list[Stroke]:
    return [np.concatenate([np.asarray(part, float) for part in parts])]


# As one learns them in school.
DRAWN: dict[int, list[Stroke]] = {
    0: [arc(0, 0, 0.6, 1, -90, 270)],
    1: joined([(-0.35, -0.55), (0, -1), (0, 1)]),
    2: joined(arc(0, -0.45, 0.55, 0.55, 180, 390), [(-0.6, 1), (0.65, 1)]),
    3: joined(arc(0, -0.5, 0.5, 0.5, -150, 90), arc(0, 0.5, 0.6, 0.5, -90, 150)),
    4: joined([(0.1, -1), (-0.6, 0.3), (0.65, 0.3)]) + joined([(0.25, -0.3), (0.25, 1)]),
    5: joined([(0.5, -1), (-0.45, -1), (-0.5, -0.15)], arc(0, 0.35, 0.6, 0.65, -120, 140)),
    6: joined([(0.35, -1), (-0.2, -0.5), (-0.5, 0.2)], arc(0, 0.45, 0.55, 0.55, 180, 540)),
    7: joined([(-0.6, -1), (0.6, -1), (-0.1, 1)]) + joined([(-0.35, 0), (0.5, 0)]),
    8: joined(arc(0, -0.5, 0.45, 0.5, 90, 450), arc(0, 0.5, 0.55, 0.5, -90, 270)),
    9: joined(arc(0, -0.5, 0.5, 0.5, 0, 360), [(0.5, -0.5), (0.5, 0.4)], arc(0, 0.5, 0.5, 0.5, 0, 140)),
}


def scribble(random: np.random.Generator) -> list[Stroke]:
    """A curve of three waves in each direction."""
    time = np.linspace(0, 1, 120)[:, None, None]
    rate, phase, size = random.uniform(1, 6, (3, 2)), random.uniform(0, 1, (3, 2)), random.uniform(0.2, 1, (3, 2))
    curve = (size * np.sin(2 * np.pi * (rate * time + phase))).sum(1)
    return [curve / np.abs(curve).max()]


def plain(strokes: list[Stroke]) -> list[list[dict[str, float]]]:
    return [[{"x": float(x), "y": float(y)} for x, y in stroke] for stroke in strokes]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page and the runs it was made of."""
    folder = tmp_path_factory.mktemp("play")
    assert build(folder / "page", folder / "runs") == folder / "page" / "index.html"
    return folder


@pytest.fixture(scope="module")
def runs(built: Path) -> dict[str, Run]:
    return {method: load_run(built / "runs" / f"digits-{method}-seed0") for method in BOTH}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no Chromium on this machine to show the page in")
    playwright = pytest.importorskip("playwright.sync_api", reason="the Python package playwright is not installed")
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        opened = driver.chromium.launch(executable_path=path, args=arguments)
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Any) -> Iterator[Any]:
    """Opens a page. Afterwards: no error was thrown or logged, and nothing but the page itself was asked for."""
    contexts, complaints, requests = [], [], []

    def opened(path: Path, width: int = 1200, height: int = 900, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        sheet = context.new_page()
        sheet.on("console", lambda message: complaints.append(message.text))
        sheet.on("pageerror", lambda error: complaints.append(str(error)))
        sheet.on("request", lambda request: requests.append(request.url))
        sheet.goto(path.as_uri())
        return sheet

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
    assert all(url.startswith("file:") and url.endswith("/index.html") for url in requests), requests
    assert len(requests) == len(contexts)


def draw(sheet: Any, strokes: list[Stroke]) -> dict[str, Any]:
    """With the mouse; what the page then says."""
    box = sheet.locator("#sheet").bounding_box()
    for stroke in strokes:
        places = [
            (box["x"] + box["width"] * (x + 1.3) / 2.6, box["y"] + box["height"] * (y + 1.3) / 2.6) for x, y in stroke
        ]
        sheet.mouse.move(*places[0])
        sheet.mouse.down()
        for place in places[1:]:
            sheet.mouse.move(*place)
        sheet.mouse.up()
    return settled(sheet)


def settled(sheet: Any) -> dict[str, Any]:
    """What the networks say about what is on the sheet, once it has been painted."""
    sheet.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return sheet.evaluate("() => window.eow.predict(window.eow.shown())")


def best(said: dict[str, Any], method: str) -> int:
    return int(np.argmax(said[method]["probs"]))


def test_the_page_says_what_pytorch_says_on_every_test_digit(built: Path, runs: dict[str, Run], show: Any) -> None:
    digits = load("digits", split="test").inputs
    sheet, pixels = show(built / "page" / "index.html"), digits.reshape(len(digits), -1).tolist()
    for rate in (None, 0.01, 0.3):
        answers = sheet.evaluate("([all, rate]) => all.map((one) => window.eow.predict(one, rate))", [pixels, rate])
        for method, run in runs.items():
            x = run.transform(torch.from_numpy(digits))
            said = run.method.predict(x, rate if method == "eow" else None)
            probs = np.array([answer[method]["probs"] for answer in answers])
            unknown = np.array([answer[method]["unknown"] for answer in answers])
            assert np.abs(probs - said.probs.numpy()).max() < 1e-5
            assert np.abs(unknown - said.unknown.numpy()).max() < 1e-5


def test_a_drawn_3_is_a_3_and_a_scribble_is_stranger(built: Path, show: Any) -> None:
    sheet = show(built / "page" / "index.html")
    three = draw(sheet, DRAWN[3])
    for method in BOTH:
        assert best(three, method) == 3
        assert sheet.locator(f"#{method} .verdict b").text_content() == "3"
    widths = sheet.locator("#eow .fill").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().width)")
    tracks = sheet.locator("#eow .track").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().width)")
    shares = [*three["eow"]["probs"], three["eow"]["unknown"]]  # the page starts at what this network learned with
    assert np.allclose(np.divide(widths, tracks), shares, atol=1e-3)
    assert "EOW-Softmax says 3" in sheet.locator("#said").text_content()
    random, unknown, words = np.random.default_rng(0), [], []
    for _ in range(5):
        sheet.click("#clear")
        assert sheet.evaluate("() => window.eow.shown()") is None
        strange = draw(sheet, [stroke[::3] for stroke in scribble(random)])
        unknown.append(strange["eow"]["unknown"])
        words.append(sheet.locator("#eow .verdict b").text_content())
        assert strange["vanilla"]["unknown"] == 0
    assert np.mean(unknown) > three["eow"]["unknown"] + 0.2
    assert words.count("unknown") >= 3


def test_all_ten_drawn_digits_are_recognised_but_for_one_at_most(built: Path, show: Any) -> None:
    sheet = show(built / "page" / "index.html")
    for method in BOTH:
        right = 0
        for label, strokes in DRAWN.items():
            said = sheet.evaluate("(strokes) => window.eow.predict(window.eow.pixelsOf(strokes))", plain(strokes))
            right += best(said, method) == label
        assert right >= 9


def test_scribbles_lose_the_belief_of_eow_and_keep_that_of_plain_softmax(built: Path, show: Any) -> None:
    sheet, random = show(built / "page" / "index.html"), np.random.default_rng(1)
    digits = load("digits", split="test").inputs.reshape(-1, 64).tolist()
    scribbles = [plain(scribble(random)) for _ in range(200)]
    usual = sheet.evaluate("(all) => all.map((one) => window.eow.predict(one))", digits)
    strange = sheet.evaluate("(all) => all.map((one) => window.eow.predict(window.eow.pixelsOf(one)))", scribbles)
    confidence = {method: np.mean([max(said[method]["probs"]) for said in strange]) for method in BOTH}
    assert confidence["vanilla"] > 0.8
    assert confidence["eow"] < 0.45
    unknown = [said["eow"]["unknown"] for said in usual + strange]
    assert roc_auc_score(np.repeat([0, 1], [len(usual), len(strange)]), unknown) > 0.88
    assert np.mean(unknown[len(usual) :]) > 2 * np.mean(unknown[: len(usual)])


def test_place_size_and_slant_of_a_drawing_do_not_matter(built: Path, show: Any) -> None:
    sheet = show(built / "page" / "index.html")
    for strokes in DRAWN.values():
        variants = [strokes, [64 * s + 100 for s in strokes], [s @ np.array([[1, 0], [-0.25, 1]]) for s in strokes]]
        first, moved, slanted = (np.array(sheet.evaluate("window.eow.pixelsOf", plain(each))) for each in variants)
        for other in (moved, slanted):  # a pixel on the pen's edge may fall to either side
            assert np.abs(first - other).sum() <= 5 * 255 / 16


def test_a_drawing_becomes_a_picture_like_those_of_the_set(built: Path, show: Any) -> None:
    sheet, real = show(built / "page" / "index.html"), load("digits").inputs
    drawn = np.array([sheet.evaluate("window.eow.pixelsOf", plain(each)) for each in DRAWN.values()]).reshape(-1, 8, 8)
    assert set(np.unique(drawn)) <= set(np.unique(real))  # the same seventeen greys
    ink, usual = drawn.sum((1, 2)), real.sum((1, 2, 3))
    assert (np.quantile(usual, 0.01) < ink).all()
    assert (ink < np.quantile(usual, 0.99)).all()
    assert (drawn[:, [0, 7]].max(2) > 0).all()  # as high as the box
    assert (drawn[:, :, [0, 7]].sum() / drawn.sum()) < 0.02  # and hardly ever as wide
    for odd in ([[(0.5, 0.5)]], [[(0, 0), (1, 0)]], [[(0, 0), (0, 1)]]):  # a dot and two dashes are pictures too
        dots = sheet.evaluate("window.eow.pixelsOf", plain([np.array(s) for s in odd]))
        assert len(dots) == 64
        assert 0 < sum(dots) < 64 * 255


def test_a_finger_draws_and_a_second_one_does_not(built: Path, show: Any) -> None:
    sheet = show(built / "page" / "index.html", 375, 812, has_touch=True, is_mobile=True)
    box, client = sheet.locator("#sheet").bounding_box(), sheet.context.new_cdp_session(sheet)

    def touch(kind: str, *places: tuple[float, float]) -> None:
        points = [
            {"x": box["x"] + box["width"] * (x + 1.3) / 2.6, "y": box["y"] + box["height"] * (y + 1.3) / 2.6, "id": i}
            for i, (x, y) in enumerate(places)
        ]
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    path = DRAWN[3][0]
    touch("touchStart", path[0])
    for place in path[1:20]:
        touch("touchMove", place)
    for place in path[20:]:
        touch("touchMove", place, (1, 1))
    touch("touchEnd")
    said = settled(sheet)
    assert [best(said, method) for method in BOTH] == [3, 3]
    assert sheet.evaluate("() => window.scrollY") == 0


def test_the_keyboard_reaches_everything_and_draws(built: Path, show: Any) -> None:
    sheet = show(built / "page" / "index.html")
    reached = []
    for _ in range(8):
        sheet.keyboard.press("Tab")
        reached.append(sheet.evaluate("() => document.activeElement.id || document.activeElement.dataset.example"))
    assert reached == ["sheet", "clear", "three", "digit", "letter", "scribble", "noise", "rate"]
    sheet.focus("#sheet")
    for key in ["ArrowUp"] * 6 + ["Space"] + ["ArrowDown"] * 12 + ["Space"]:
        sheet.keyboard.press(key)
    assert best(settled(sheet), "vanilla") == 1
    assert sheet.locator("#sheet").get_attribute("aria-label") == "Drawing area, your drawing"
    assert "Plain softmax says 1" in sheet.locator("#said").text_content()
    sheet.keyboard.press("Delete")
    assert sheet.evaluate("() => window.eow.shown()") is None
    named = "(one) => one.getAttribute('aria-label') || one.labels?.length || one.textContent.trim()"
    assert sheet.locator("button, input, canvas, section").evaluate_all(f"(all) => all.every({named})")


def test_the_examples_are_what_their_buttons_say(built: Path, show: Any) -> None:
    sheet, test = show(built / "page" / "index.html"), load("digits", split="test")
    sheet.click("[data-example=three]")
    assert sheet.evaluate("() => window.eow.shown()") == test.inputs[test.labels == 3][0].ravel().tolist()
    real = {tuple(picture) for picture in test.inputs.reshape(len(test), -1).tolist()}
    for _ in range(12):
        sheet.click("[data-example=digit]")
        assert tuple(sheet.evaluate("() => window.eow.shown()")) in real
    for name in ("letter", "scribble", "noise"):
        sheet.click(f"[data-example={name}]")
        assert tuple(sheet.evaluate("() => window.eow.shown()")) not in real
    draw(sheet, DRAWN[0])  # on a sheet with an example, the hand starts afresh
    alone = sheet.evaluate("() => window.eow.shown()")
    sheet.click("#clear")
    draw(sheet, DRAWN[0])
    assert sheet.evaluate("() => window.eow.shown()") == alone


def test_the_expected_share_of_unknowns_moves_the_unknown_bar(built: Path, show: Any) -> None:
    sheet = show(built / "page" / "index.html")
    sheet.click("[data-example=letter]")
    shown = []
    for rate in (1, 50, 95):
        sheet.locator("#rate").fill(str(rate))
        share = sheet.locator("#eow .unknown .share").text_content()
        exact = sheet.evaluate("(rate) => window.eow.predict(window.eow.shown(), rate).eow.unknown", rate / 100)
        assert float(share.rstrip("\xa0%")) == pytest.approx(100 * exact, abs=0.51)
        shown.append(exact)
    assert shown == sorted(shown)
    odds = [value / (1 - value) for value in shown]
    assert odds[2] / odds[0] == pytest.approx((0.95 / 0.05) / (0.01 / 0.99), rel=1e-6)  # only the prior odds move


@pytest.mark.parametrize("width", [375, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_and_nothing_sticks_out(built: Path, show: Any, width: int, scheme: str) -> None:
    sheet = show(built / "page" / "index.html", width, 812, color_scheme=scheme)
    draw(sheet, DRAWN[3])
    assert sheet.evaluate("() => document.documentElement.scrollWidth") <= width
    ground = luminance(sheet.evaluate("() => getComputedStyle(document.body).backgroundColor"))
    assert (ground < 0.1) == (scheme == "dark")
    for selector in ("h1", ".small", ".unknown-word", ".bars .share", ".verdict b", "button"):
        text = luminance(sheet.locator(selector).first.evaluate("(one) => getComputedStyle(one).color"))
        assert (max(text, ground) + 0.05) / (min(text, ground) + 0.05) > 4.5, selector  # WCAG 2, level AA
    if width == 375:  # the bars are on the screen together with the hand
        assert sheet.locator("#eow .unknown").bounding_box()["y"] < 812


@pytest.mark.parametrize("width", [320, 360, 375, 1200])
def test_the_answer_is_a_whole_word_on_a_phone_too(built: Path, show: Any, width: int) -> None:
    sheet = show(built / "page" / "index.html", width, 812)
    draw(sheet, DRAWN[3])
    sheet.locator("input[type=range]").press("End")  # 95 % of all are expected to be unknown
    sheet.wait_for_function("() => document.querySelector('#eow .verdict b')?.textContent == 'unknown'")
    word = sheet.locator("#eow .verdict b")
    assert word.evaluate("(one) => one.scrollWidth - one.clientWidth") <= 0


def luminance(colour: str) -> float:
    """Relative luminance after WCAG 2 of "rgb(r, g, b)"."""
    part = np.array([int(number) for number in re.findall(r"\d+", colour)[:3]]) / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def untrained(data: str, side: int, classes: tuple[str, ...]) -> tuple[dict[str, Run], dict[str, Any], Dataset]:
    """What a page is composed of, without a training."""
    random = np.random.default_rng(0)
    labels = np.arange(4 * len(classes)) % len(classes)
    test = Dataset(data, "test", random.integers(0, 256, (len(labels), 1, side, side), np.uint8), labels, classes)
    summary = {"metrics": {"test": {"accuracy": 0.5, "unknown": 0.1}}, "sets": {"train": {"samples": 1234}}}
    made = {}
    for method in BOTH:
        config = page.play_config(method, "mnist" if side == 28 else "digits", 0)
        network = make_method(config, len(classes), test.shape)
        made[method] = Run(Path(), config, network, classes, test.shape, Transform((0.25,), (0.5,)), "")
    return made, dict.fromkeys(BOTH, summary), test


def test_mnist_has_a_page_too_with_its_own_kind_of_picture(tmp_path: Path, show: Any) -> None:
    made, summaries, test = untrained("mnist", 28, tuple("0123456789"))
    (tmp_path / "index.html").write_text(page.compose(made, summaries, test), encoding="utf-8")
    sheet = show(tmp_path / "index.html")
    for strokes in [*DRAWN.values(), scribble(np.random.default_rng(2))]:
        picture = np.array(sheet.evaluate("window.eow.pixelsOf", plain(strokes))).reshape(28, 28)
        rows, columns = (np.flatnonzero(picture.sum(axis)) for axis in (1, 0))
        assert max(np.ptp(rows), np.ptp(columns)) + 1 == pytest.approx(20, abs=1.5)
        centre = [(picture.sum(axis) * (np.arange(28) + 0.5)).sum() / picture.sum() for axis in (0, 1)]
        assert np.allclose(centre, 14, atol=0.1)
        assert len(np.unique(picture)) > 5  # grey at its edges
    answers = sheet.evaluate("(all) => all.map((one) => window.eow.predict(one))", test.inputs.reshape(40, -1).tolist())
    for method, run in made.items():
        said = run.method.predict(run.transform(torch.from_numpy(test.inputs)))
        assert np.allclose([answer[method]["probs"] for answer in answers], said.probs, atol=1e-5)
    assert "28×28" in sheet.locator("figcaption").text_content()


def test_a_quadratic_unknown_is_one_in_the_page_too(tmp_path: Path, show: Any) -> None:
    made, summaries, test = untrained("digits", 8, tuple("0123456789"))
    model = made["eow"].method.model
    model.tail.head = OpenLinear(model.tail.head)
    torch.nn.init.normal_(model.tail.head.square)
    (tmp_path / "index.html").write_text(page.compose(made, summaries, test), encoding="utf-8")
    digits = test.inputs[:50]
    answers = show(tmp_path / "index.html").evaluate(
        "(all) => all.map((one) => window.eow.predict(one))", digits.reshape(len(digits), -1).tolist()
    )
    said = made["eow"].method.predict(made["eow"].transform(torch.from_numpy(digits)))
    assert np.allclose([answer["eow"]["unknown"] for answer in answers], said.unknown, atol=1e-5)


def test_names_of_classes_are_text_and_never_markup(tmp_path: Path, show: Any) -> None:
    names = (
        "</script><script>window.hurt = 1</script>",
        "<!--<script>",
        "<img src=x onerror=alert(1)>",
        "{{page}}",
        "3",
    )
    made, summaries, test = untrained("digits", 8, names)
    (tmp_path / "index.html").write_text(page.compose(made, summaries, test), encoding="utf-8")
    sheet = show(tmp_path / "index.html")
    assert sheet.locator("#eow .name").all_text_contents() == [*names, "unknown"]
    assert sheet.evaluate("() => window.hurt") is None
    assert sheet.locator("main img").count() == 0
    sheet.click("[data-example=three]")
    assert sheet.evaluate("() => window.eow.classes") == list(names)
    assert sheet.evaluate("() => document.documentElement.scrollWidth") <= 1200


def test_a_wrong_number_of_pixels_is_refused(built: Path, show: Any) -> None:
    sheet = show(built / "page" / "index.html")
    refusal = "() => { try { window.eow.predict([1, 2, 3]) } catch (error) { return error.message } }"
    assert "64 pixels" in sheet.evaluate(refusal)


def test_the_page_is_one_file_that_names_no_other(built: Path) -> None:
    assert [file.name for file in (built / "page").iterdir()] == ["index.html"]
    text = (built / "page" / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|\bsrc=|@import|url\(|\bfetch\(|XMLHttpRequest|import\(|WebSocket|sendBeacon", text)
    assert "{{" not in text
    assert str(built) not in text
    content = json.loads(re.search(r'id="eow-page">(.*?)</script>', text, re.DOTALL)[1])
    assert content["classes"] == list("0123456789")


def test_networks_are_used_again_and_give_the_same_bytes(built: Path, tmp_path: Path) -> None:
    weights = built / "runs" / "digits-eow-seed0" / "weights.safetensors"
    before = weights.stat().st_mtime_ns
    again = build(tmp_path / "again", built / "runs")
    assert weights.stat().st_mtime_ns == before
    assert again.read_bytes() == (built / "page" / "index.html").read_bytes()


def test_what_cannot_be_built_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("EOW_DATA", str(tmp_path / "empty"))
    for wrong, words in (({"data": "cifar10"}, "digits, mnist"), ({"data": "mnist"}, "mnist"), ({"seed": -1}, "seed")):
        with pytest.raises(EowError, match=words):
            build(tmp_path / "out", tmp_path / "runs", **wrong)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(EowError, match="cannot be written"):
        build(tmp_path / "file")
    for foreign in (b"<!doctype html><p>my site", b"\xff"):
        (tmp_path / "index.html").write_bytes(foreign)
        with pytest.raises(EowError, match=r"index\.html is a page that eow has not made: move it away"):
            build(tmp_path)
        assert (tmp_path / "index.html").read_bytes() == foreign
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "index.html"]


def test_eow_learns_what_the_settings_say() -> None:
    assert page.play_config("vanilla", "digits", 1) == resolve(
        {"data": {"name": "digits"}, "model": {"name": "mlp"}, "method": {"name": "vanilla"}, "seed": 1}
    )
    assert page.play_config("eow", "digits", 0).method.lam == 1.0


def test_the_page_is_served_on_this_machine_alone_until_ctrl_c(built: Path) -> None:
    command = f"from eow.play import serve; serve({str(built / 'page')!r}, 0, open_browser=False)"
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline().decode())[0]
        for path in ("", "index.html", "?a=b"):
            with urllib.request.urlopen(address + path, timeout=10) as answer:
                assert answer.read() == (built / "page" / "index.html").read_bytes()
                assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        for path in ("other.html", "../runs/", "%2e%2e/runs/digits-eow-seed0/config.json"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(address + path, timeout=10)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert b"ended" in process.stdout.read()
        assert process.stderr.read() == b""


def test_a_port_in_use_is_refused_or_passed_over(built: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EowError, match=f"port {port} cannot be had"):
            serve(built / "page", port, open_browser=False)
    with make_server(built / "page", None) as first, make_server(built / "page", None) as second:
        assert first.server_port != second.server_port
    for wrong in (-1, 65536):
        with pytest.raises(EowError, match="65535"):
            serve(built / "page", wrong, open_browser=False)
    with pytest.raises(EowError, match=r"no index\.html"):
        serve(tmp_path, open_browser=False)
