"""The report: its numbers against the runs' own files, its page in a real browser, and what it says when it cannot."""

import base64
import csv
import io
import json
import shlex
import shutil
import statistics
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from problems import blobs, linear_energy_gradient, small_model

from eow import metrics, opening, predictions, robustness, runs, storage
from eow.compare import compare
from eow.config import from_assignments, resolve, to_table
from eow.data import Dataset
from eow.data.loader import Batches, Transform
from eow.errors import EowError
from eow.evaluate import evaluate
from eow.methods.eow import EOW, EOWOptions
from eow.predictions import file_name
from eow.report import page, report
from eow.report.curves import thresholds
from eow.report.gather import gather
from eow.report.parts import Axis, Cell, Figure, Key, Panel, Series, Table, around, rows_of, ticks
from eow.report.plots import draw
from eow.report.progress import chains
from eow.report.sections import Section, compose
from eow.report.texts import tex

FAST = {
    "train": {"epochs": 12, "checkpoint_every": 99},
    "model": {"hidden": [32]},
    "data": {"unknown_classes": [8, 9], "outliers": ["noise"]},
}
HOSTILE = ["<script>window.hacked=1</script>", "\"quoted\" & 'single'", "</script>", "<img src=x onerror=hacked=1>"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("runs")
    folders = []
    for method in ("vanilla", "eow"):
        for seed in (0, 1):
            folders.append(place / f"{method}-{seed}")
            runs.train(resolve(FAST, {"method": {"name": method}, "seed": seed}), folders[-1], progress=False)
            summary = storage.read_json(folders[-1] / "summary.json")
            if method == "eow" and "chain" not in summary:
                run = runs.load(folders[-1])
                data = runs.load_sets(run.config.data, seed)
                profile = run.method.diagnose(Batches(data.train, 1000, data.transform, torch.device("cpu")))
                storage.write_json(folders[-1] / "summary.json", {**summary, "chain": profile})
    return folders


def metric(folder: Path, where: str, name: str) -> float:
    return storage.read_json(folder / "summary.json")["metrics"][where][name]


def copy(folder: Path, to: Path, **settings: dict) -> Path:
    """The run under another name, with other settings in its config.json."""
    shutil.copytree(folder, to)
    config = storage.read_json(to / "config.json")
    for section, values in settings.items():
        config[section] = {**config[section], **values} if isinstance(values, dict) else values
    storage.write_json(to / "config.json", config)
    return to


def change_manifest(folder: Path, file: str, **values: object) -> None:
    path = folder / "predictions" / f"{file}.safetensors"
    arrays, manifest = storage.read_tensors(path, "numpy")
    manifest |= values
    path.unlink()
    storage.write_arrays(path.with_name(file_name(manifest["name"])), arrays, manifest)


def sections_of(folders: list[Path], rate: float | None = None, format: str = "md") -> list[Section]:
    return compose(gather(folders, rate), format, rate, "")


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


# Numbers


def test_the_headline_is_mean_and_standard_deviation_of_the_runs_own_summaries(
    trained: list[Path], tmp_path: Path
) -> None:
    files = report(trained, tmp_path / "numbers", "csv")
    assert tmp_path / "numbers" / "headline.csv" in files
    lines = {line["method"]: line for line in read_csv((tmp_path / "numbers" / "headline.csv").read_text())}
    for method, folders in (("vanilla", trained[:2]), ("eow", trained[2:])):
        for title, name, factor in (("accuracy %", "accuracy", 100), ("ECE %", "ece", 100), ("NLL", "nll", 1)):
            values = [factor * metric(folder, "test", name) for folder in folders]
            assert float(lines[method][title]) == pytest.approx(np.mean(values), rel=1e-12)
            assert float(lines[method][f"{title} std"]) == pytest.approx(np.std(values, ddof=1), abs=1e-12)
    assert lines["vanilla"]["unknown"] == ""  # vanilla has none: no number, and no zero
    assert float(lines["eow"]["unknown"]) > 0


def test_the_unknowns_are_told_apart_by_every_score_the_method_has(trained: list[Path]) -> None:
    table = next(table for table in sections_of(trained)[0].tables if table.key == "unknowns")
    rows = {(row[0].text, row[1].text): dict(zip(table.header, row)) for row in table.rows}
    for score in ("confidence", "entropy", "unknown"):
        for kind in ("auroc", "fpr95"):
            values = [100 * metric(folder, "noise", f"{kind}_{score}") for folder in trained[2:]]
            assert rows["eow", "noise"][f"{kind.upper()} % {score}"].value == pytest.approx(np.mean(values), rel=1e-12)
    assert rows["vanilla", "noise"]["AUROC % entropy"].value > 50
    assert rows["vanilla", "noise"]["AUROC % unknown"].value is None
    [alone] = [table for table in sections_of(trained[:1])[0].tables if table.key == "unknowns"]
    assert all(row[alone.header.index("AUROC % entropy")].low is not None for row in alone.rows)  # its interval


def test_markdown_and_latex_say_what_the_summaries_say(trained: list[Path], tmp_path: Path) -> None:
    [markdown], [latex] = (report(trained, tmp_path / f"r.{kind}", kind) for kind in ("md", "latex"))
    values = [100 * metric(folder, "test", "accuracy") for folder in trained[2:]]
    mean, spread = f"{statistics.fmean(values):.2f}", f"{statistics.stdev(values):.2f}"
    assert f"| eow | {mean} ± {spread} |" in markdown.read_text()
    assert f"eow & {mean} $\\pm$ {spread} &" in latex.read_text()
    aurocs = [100 * metric(folder, "noise", "auroc_unknown") for folder in trained[2:]]
    assert f"{statistics.fmean(aurocs):.1f} ± {statistics.stdev(aurocs):.1f}" in markdown.read_text()
    assert latex.read_text().count(r"\toprule") == latex.read_text().count(r"\bottomrule") >= 3
    assert tex("a_b & 5 % of $x^2$ {#1} <\\>") == (
        r"a\_b \& 5 \% of \$x\textasciicircum{}2\$ \{\#1\} \textless{}\textbackslash{}\textgreater{}"
    )


def test_one_csv_holds_every_number_in_a_row_of_its_own(trained: list[Path], tmp_path: Path) -> None:
    [file] = report(trained, tmp_path / "all.csv", "csv")
    lines = read_csv(file.read_text())
    found = [line for line in lines if (line["part"], line["panel"], line["series"]) == ("headline", "NLL", "vanilla")]
    assert float(found[0]["y"]) == pytest.approx(np.mean([metric(folder, "test", "nll") for folder in trained[:2]]))
    parts = {line["part"] for line in lines}
    assert {"reliability", "risk-coverage", "thresholds", "unknown", "training", "chain", "unknowns"} <= parts


def test_the_curves_are_those_of_the_predictions(trained: list[Path]) -> None:
    figures = {figure.key: figure for figure in sections_of(trained)[0].figures}
    known = [predictions.read(folder / "predictions" / "test.safetensors") for folder in trained[2:]]
    for figure in figures.values():
        for panel in figure.panels:
            assert isinstance(panel, Panel)
            assert all(len(series.x) <= 200 for series in panel.series)
    both = np.concatenate([each.confidence for each in known]), np.concatenate([each.correct for each in known])
    pooled = metrics.reliability(*both)
    drawn = figures["reliability"].panels[1].series[0]
    assert drawn.samples == pooled.counts.tolist()
    kept = pooled.counts > 0
    np.testing.assert_allclose(np.array(drawn.y, float)[kept], pooled.accuracy[kept])
    np.testing.assert_allclose(np.array(drawn.x, float)[kept], pooled.confidence[kept])
    risk = figures["risk-coverage"].panels[0].series[1]
    assert risk.x[-1] == 100
    assert risk.y[-1] == pytest.approx(100 * np.mean([1 - each.correct.mean() for each in known]))
    half = [np.sort(each.confidence)[::-1][: -(-len(each.confidence) // 2)][-1] for each in known]
    wrong = [100 * (~each.correct[each.confidence >= cut]).mean() for each, cut in zip(known, half)]
    assert risk.y[risk.x.index(50)] == pytest.approx(np.mean(wrong))
    accuracy = figures["thresholds"].panels[1].series[1]  # eow, known and noise
    stored = [storage.read_json(folder / "summary.json")["metrics"]["noise"]["accuracy_at"] for folder in trained[2:]]
    for threshold in ("0", "0.25", "0.5"):
        at = accuracy.y[accuracy.x.index(float(threshold))]
        assert at == pytest.approx(100 * np.mean([each[threshold] for each in stored]))
    for series, name in zip(figures["unknown"].panels[0].series, ("test", "unknown", "noise")):
        said = [predictions.read(folder / "predictions" / f"{name}.safetensors") for folder in trained[2:]]
        assert sum(series.samples) == sum(len(each.unknown) for each in said)
        assert series.samples[0] == sum((each.unknown < series.x[0] * 2).sum() for each in said)
    drawn = {(series.kind, series.colour, series.dash) for series in figures["unknown"].panels[0].series}
    assert {
        (key.kind, key.colour, key.dash) for key in figures["unknown"].legend
    } == drawn  # a key looks as what it is of
    losses = figures["training"].panels[0].series[0]
    logs = [storage.Log(folder / "log.jsonl").read() for folder in trained[:2]]
    assert losses.x == list(range(1, 13))
    np.testing.assert_allclose(losses.y, np.mean([[line["ce"] for line in log] for log in logs], axis=0))


def test_differences_from_vanilla_are_those_of_compare_under_their_own_titles(trained: list[Path]) -> None:
    [section] = sections_of(trained)
    table = next(table for table in section.tables if table.key == "differences")
    found = {row.figure: row for row in compare(trained[2:], trained[:2], unknowns=False)}
    [row] = table.rows
    told = dict(zip(table.header, (cell.value for cell in row), strict=True))
    points = {"accuracy, points": "accuracy", "ECE, points": "ece", "ECE of K, points": "ece_renormalised"}
    for title, figure in {**points, "NLL": "nll", "NLL of K": "nll_renormalised"}.items():
        factor = 100 if title in points else 1
        assert told[title] == pytest.approx(factor * found[figure].difference, abs=1e-12), title
        assert told[f"p ({title.removesuffix(', points')})"] == found[figure].p_value


def test_bands_of_seeds_that_are_far_apart_stay_inside_their_panels(trained: list[Path]) -> None:
    [bunch] = gather(trained)
    good = bunch.groups[0].runs[0]
    rows = np.arange(len(good.known.label))
    bad = replace(good, known=replace(good.known, label=np.where(rows % 2, good.known.label, -1)))  # half of it wrong
    figure = thresholds(replace(bunch, groups=[replace(bunch.groups[0], runs=[good, bad])]))
    assert figure is not None
    for panel in figure.panels:
        assert isinstance(panel, Panel)
        [series] = panel.series
        assert series.low is not None
        assert series.high is not None
        assert panel.y.low <= min(each for each in series.low if each is not None)
        assert panel.y.high >= max(each for each in series.high if each is not None)


def test_an_unknown_rate_is_applied_to_the_runs_that_can(trained: list[Path]) -> None:
    rows = {row[0].text: row for row in sections_of(trained, 0.01)[0].headline.rows}
    ece = sections_of(trained, 0.01)[0].headline.header.index("ECE %")
    wanted = 100 * np.mean([evaluate(folder, 0.01)["test"]["ece"] for folder in trained[2:]])
    assert rows["eow"][ece].value == pytest.approx(wanted)
    for table in (sections_of(trained, 0.01)[0].headline, *sections_of(trained, 0.01)[0].tables):
        assert "unknown rate of 0.01" in table.caption, table.key
    assert rows["vanilla"][ece].value == pytest.approx(100 * np.mean([metric(f, "test", "ece") for f in trained[:2]]))


def test_the_paper_stands_beside_the_runs_it_has(trained: list[Path], tmp_path: Path) -> None:
    plain = {"name": "mnist", "unknown_classes": []}
    folders = [copy(folder, tmp_path / folder.name, data=plain) for folder in trained]
    headline = sections_of(folders)[0].headline
    assert "paper's accuracy %" not in sections_of(trained)[0].headline.header
    figures = {row[0].text: dict(zip(headline.header, row)) for row in headline.rows}
    assert figures["vanilla"]["paper's accuracy %"].value == 98.32
    assert figures["eow"]["paper's ECE %"].value == 0.88
    cifar = [copy(folder, tmp_path / f"c{folder.name}", data={**plain, "name": "cifar100"}, model={"name": "resnet50"})
             for folder in trained]  # fmt: skip
    for folder in cifar:
        change_manifest(folder, "noise", name="cifar10")
    section = sections_of(cifar)[0]
    table = next(table for table in section.tables if table.key == "table2")
    row = next(row for row in table.rows if (row[0].text, row[1].text) == ("eow", "cifar10"))
    assert dict(zip(table.header, row))["paper's above 0.5, %"].value == 57.32
    figure = next(figure for figure in section.figures if figure.key == "thresholds")
    printed = [s for panel in figure.panels for s in panel.series if s.kind == "crosses" and s.name == "eow, paper"]
    assert printed[0].y == [37.65, 50.11, 57.32, 69.0]
    assert {row[0].text: row for row in section.headline.rows}["eow"][column(section, "paper's ECE %")].value == 1.08
    assert "its table 1, for" in section.headline.caption
    lams = [copy(cifar[-1], tmp_path / f"lam{lam}", method={"lam": lam}) for lam in (0.1, 0.02, 0.01)]
    section = sections_of(lams)[0]
    printed = [row[column(section, "paper's ECE %")].value for row in section.headline.rows]
    assert {*printed} == {1.08, None, 2.31}
    assert "its tables 1 and, by λ, 3, for" in section.headline.caption


def column(section: Any, title: str) -> int:
    return section.headline.header.index(title)


def test_groups_that_differ_in_a_setting_are_named_by_it(trained: list[Path], tmp_path: Path) -> None:
    other = copy(trained[2], tmp_path / "other", method={"lam": 0.5})
    labels = [row[0].text for row in sections_of([*trained, other])[0].headline.rows]
    assert labels == ["vanilla", "eow, lam 0.01", "eow, lam 0.5"]


def test_runs_on_different_data_have_sections_of_their_own(trained: list[Path], tmp_path: Path) -> None:
    inputs, labels = blobs()
    np.savez(tmp_path / "blobs.npz", x=inputs, y=labels)
    wishes = {"data": {"name": f"npz:{tmp_path / 'blobs.npz'}"}, "method": {"name": "vanilla"}}
    runs.train(resolve({"train": {"epochs": 1}}, wishes), tmp_path / "run", progress=False)
    both = sections_of([*trained, tmp_path / "run"], format="html")
    assert [len(section.headline.rows) for section in both] == [2, 1]
    assert "inputs of shape (4,)" in both[1].gallery.missing
    (tmp_path / "blobs.npz").unlink()
    assert "could not be read" in sections_of([tmp_path / "run"], format="html")[0].gallery.missing
    alone = sections_of([tmp_path / "run"])[0].headline
    cell = alone.rows[0][alone.header.index("accuracy %")]
    assert cell.spread is None
    assert cell.low <= cell.value <= cell.high
    assert not any(figure.key in ("thresholds", "unknown") for figure in both[1].figures)


def test_the_command_that_corrupts_is_named_where_it_works(trained: list[Path], tmp_path: Path) -> None:
    def missing(*folders: Path) -> str:
        return next(figure for figure in sections_of([*folders])[0].figures if figure.key == "corruptions").missing

    random = np.random.default_rng(0)
    y = np.arange(60) % 3
    np.savez(tmp_path / "28.npz", x=random.integers(0, 256, (60, 28, 28), dtype=np.uint8), y=y)
    np.savez(tmp_path / "table.npz", x=random.normal(size=(60, 4)), y=y)
    made = {}
    for name in ("28", "table"):
        made[name] = tmp_path / name
        small = {"model": {"name": "mlp", "hidden": [4]}, "train": {"epochs": 1}, "method": {"name": "vanilla"}}
        runs.train(resolve(small, {"data": {"name": f"npz:{made[name]}.npz"}}), made[name], progress=False)
    words = {name: missing(folder) for name, folder in {**made, "8x8": trained[0]}.items()}
    assert f"eow evaluate {made['28']} --corruptions" in words["28"]
    assert words["8x8"].endswith("images of 28×28 or larger, and these are images of 8×8.")
    assert words["table"].endswith("and these are features.")
    for name, folder in {**made, "8x8": trained[0]}.items():  # and that is what the command itself says
        run = runs.load(folder)
        said = robustness.predict_corrupted(run, opening.own_test_set(run), names=["contrast"])
        if "--corruptions" in words[name]:
            assert list(said) == ["contrast"]
        else:
            with pytest.raises(EowError, match="corrupt"):
                list(said)
    (made["28"] / "weights.safetensors").unlink()
    assert "the weights it would need are gone" in missing(made["28"])


def test_corruption_figures_are_drawn_from_the_runs_file(trained: list[Path], tmp_path: Path) -> None:
    folder = copy(trained[2], tmp_path / "run")
    random = np.random.default_rng(0)
    matrices = {name: random.random((2, 5)) for name in ("accuracy", "ece", "nll", "unknown")}
    spread = {name: [{"mean": c.mean(), "std": c.std()} for c in matrix.T] for name, matrix in matrices.items()}
    table = {"corruptions": ["fog", "glass_blur"], "severities": [1, 2, 3, 4, 5], "source": "made with seed 0"}
    table |= {name: matrix.tolist() for name, matrix in matrices.items()} | {"severity": spread}
    storage.write_json(folder / "corruptions.json", table)
    figures = {figure.key: figure for figure in sections_of([folder])[0].figures}
    header, rows = rows_of(figures["corruption-maps"])
    assert header == ["panel", "row", "severity", "value"]
    assert rows[:5] == [["eow: accuracy, %", "fog", str(s), pytest.approx(100 * matrices["accuracy"][0, s - 1], 1e-5)]
                        for s in range(1, 6)]  # fmt: skip
    bars = figures["corruption-bars"].panels[0].series[0]
    np.testing.assert_allclose(bars.y, 100 * matrices["ece"].mean(0))
    np.testing.assert_allclose(np.subtract(bars.high, bars.y), 100 * matrices["ece"].std(0))
    assert Image.open(report([folder], tmp_path / "all.png", "png")[0]).height > 3000
    storage.write_json(folder / "corruptions.json", {**table, "ece": [[0.1]]})
    with pytest.raises(EowError, match="does not hold corruption figures"):
        report([folder], tmp_path / "no.html")


def test_a_certified_threshold_is_held_against_the_test_set(trained: list[Path], tmp_path: Path) -> None:
    folder = copy(trained[0], tmp_path / "run")
    said = predictions.read(folder / "predictions" / "test.safetensors")
    cut = float(np.median(said.confidence))
    promise = {"threshold": cut, "max_risk": 0.05, "delta": 0.1, "coverage": 0.5, "risk": 0.01, "bound": 0.04,
               "samples": 90, "unknown_rate": None,
               "weights": storage.read_json(folder / "summary.json")["weights"]}  # fmt: skip
    storage.write_json(folder / "threshold.json", promise)
    table = next(table for table in sections_of([folder])[0].tables if table.key == "certified")
    figures = dict(zip(table.header, table.rows[0]))
    kept = said.confidence >= cut
    assert figures["test: answered %"].value == pytest.approx(100 * kept.mean())
    assert figures["risk %"].value == pytest.approx(100 * (~said.correct[kept]).mean())
    assert figures["with probability %"].value == pytest.approx(90)


def test_the_pictures_are_the_surest_errors_and_the_most_unknown(trained: list[Path]) -> None:
    strips = sections_of(trained, format="html")[0].gallery.strips
    run = runs.load(trained[2])
    said, test = predictions.read(trained[2] / "predictions" / "test.safetensors"), opening.own_test_set(run)
    wrong = np.flatnonzero(~said.correct)
    place = wrong[said.confidence[wrong].argmax()]
    first = strips[1].wrong[0]
    assert first.confidence == pytest.approx(float(said.confidence[place]))
    assert (first.truth, first.said) == (run.classes[said.labels[place]], run.classes[said.label[place]])
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(first.image.partition(",")[2]))))
    np.testing.assert_array_equal(shown, test.inputs[place, 0])
    assert [picture.unknown for picture in strips[1].unsure] == pytest.approx(sorted(said.unknown.tolist())[:-7:-1])
    assert [picture.unknown for picture in strips[0].unsure] == [None] * 6


def test_strange_pictures_are_the_surest_and_the_most_unknown_of_the_unseen_classes(trained: list[Path]) -> None:
    shown = sections_of(trained, format="html")[0].gallery
    run = runs.load(trained[2])
    said = predictions.read(trained[2] / "predictions" / "unknown.safetensors")
    data = opening.own_sets(run, ["unknown"])["unknown"]
    vanilla, strip = shown.strips
    assert "8" in shown.strange
    assert shown.strange in shown.caption
    place = int(said.confidence.argmax())
    first = strip.fooled[0]
    assert (first.truth, first.said) == (data.classes[said.labels[place]], run.classes[said.label[place]])
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(first.image.partition(",")[2]))))
    np.testing.assert_array_equal(pixels, data.inputs[place, 0])
    assert [picture.unknown for picture in strip.found] == pytest.approx(sorted(said.unknown.tolist())[:-7:-1])
    lowest = sorted(predictions.read(trained[0] / "predictions" / "unknown.safetensors").confidence.tolist())[:6]
    assert [picture.confidence for picture in vanilla.found] == pytest.approx(lowest)


def test_strange_pictures_whose_data_is_gone_are_told_and_the_others_shown(tmp_path: Path) -> None:
    inputs = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "other.npz", x=inputs, y=np.arange(40) % 2)
    wishes = {"data": {"outliers": [f"npz:{tmp_path}/other.npz"]}, "model": {"hidden": [8]}, "train": {"epochs": 1}}
    runs.train(resolve(wishes, {"method": {"name": "vanilla"}}), tmp_path / "run", progress=False)
    assert sections_of([tmp_path / "run"], format="html")[0].gallery.strips[0].fooled
    (tmp_path / "other.npz").unlink()
    shown = sections_of([tmp_path / "run"], format="html")[0].gallery
    assert "Strange pictures are not shown" in shown.missing
    assert shown.strips[0].unsure
    assert not shown.strips[0].fooled


def test_the_command_makes_the_same_settings_again(trained: list[Path]) -> None:
    words = shlex.split(sections_of(trained)[0].details[0].text.splitlines()[2])
    assert words[:2] == ["eow", "train"]
    flags = dict(zip(words[2::2], words[3::2]))
    names = {section: {"name": flags[f"--{section}"]} for section in ("data", "model", "method")}
    settings = [value for flag, value in zip(words[2::2], words[3::2]) if flag == "--set"]
    again = resolve(names, {"recipe": flags["--recipe"], "seed": int(flags["--seed"])}, from_assignments(settings))
    assert to_table(again) == storage.read_json(trained[2] / "config.json")


def test_where_the_data_lies_is_nobody_s_business_and_a_switch_is_said_as_it_is_read(
    trained: list[Path], tmp_path: Path
) -> None:
    nesterov = not storage.read_json(trained[2] / "config.json")["train"]["nesterov"]
    copied = copy(trained[2], tmp_path / "run", data={"root": "/home/somebody"}, train={"nesterov": nesterov})
    details = sections_of([copied])[0].details
    assert not any("somebody" in detail.text for detail in details)
    words = shlex.split(details[0].text)
    settings = [value for flag, value in pairwise(words) if flag == "--set"]
    assert from_assignments(settings)["train"]["nesterov"] is nesterov


def test_pictures_for_a_paper_are_one_file_or_one_each(trained: list[Path], tmp_path: Path) -> None:
    files = report(trained, tmp_path / "figures", "png")
    assert {file.name for file in files} >= {"reliability.png", "thresholds.png", "training.png", "chain.png"}
    for file in files:
        pixels = np.asarray(Image.open(file).convert("L"))
        assert pixels.shape[1] > 500
        assert (pixels < 128).mean() > 0.001  # something is drawn
    [sheet] = report(trained, tmp_path / "all.png", "png")
    assert Image.open(sheet).height == sum(Image.open(file).height for file in files)


@pytest.mark.parametrize("names", [3, 16])
def test_a_legend_fits_into_its_picture(names: int) -> None:
    """A figure of one panel: many methods, or outliers with long names, once ran over both edges."""
    keys = [Key(f"near: a set of outliers {place}", place) for place in range(names)]
    curve = Series("a", [0.0, 1.0], [0.0, 1.0], 0)
    panel = Panel("known", Axis("coverage", 0, 1), Axis("risk", 0, 1), [curve])
    where = "a folder of images, " * 5
    picture = draw(Figure("risk", "Risk and coverage", "", [panel], keys), where)
    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("L"))
    assert pixels[:, [0, 1, -2, -1]].min() == 255
    assert pixels[[0, 1, -2, -1]].min() == 255


# What it refuses


def test_what_cannot_be_reported_is_said_and_nothing_is_written(trained: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    unfinished = copy(trained[0], tmp_path / "unfinished")
    (unfinished / "summary.json").unlink()
    (tmp_path / "loop").symlink_to("loop")
    for folders, words in (
        ([], "needs runs"), ([tmp_path / "nowhere"], "no run folder"), ([unfinished], "not finished"),
        ([tmp_path / "loop"], "no run folder"),
        ([trained[0], copy(trained[0], tmp_path / "twin")], "same settings and seed"),
    ):  # fmt: skip
        with pytest.raises(EowError, match=words):
            report(folders, out)
    with pytest.raises(EowError, match="choose one of html"):
        report(trained, out, "pdf")
    with pytest.raises(EowError, match="is a folder"):
        report(trained, tmp_path)
    other = copy(trained[2], tmp_path / "other", method={"lam": 0.5})
    change_manifest(other, "noise", data_hash="0")
    with pytest.raises(EowError, match="noise is not the same data"):
        report([*trained, other], out)
    assert not out.exists()


def test_a_run_given_twice_counts_once_and_the_folder_is_made(trained: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder" / "report.html"
    assert report([*trained, trained[0], trained[0].parent / "." / trained[0].name], out) == [out]
    assert out.read_bytes() == report(trained, tmp_path / "again.html")[0].read_bytes()
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]


def test_a_bench_stands_for_the_finished_runs_in_its_rows(trained: list[Path], tmp_path: Path) -> None:
    for folder in trained:
        shutil.copytree(folder, tmp_path / "bench" / "runs" / folder.name)
    (tmp_path / "bench" / "runs" / "eow-1" / "summary.json").unlink()  # a cell that failed
    rows = [{"runs": ["vanilla-0"]}, {"runs": ["eow-0", "eow-1"]}]  # vanilla-1 is there for others only
    storage.write_json(tmp_path / "bench" / "table.json", {"rows": rows})
    headline = sections_of([tmp_path / "bench"])[0].headline
    assert [(row[0].text, row[-1].value) for row in headline.rows] == [("vanilla", 1), ("eow", 1)]
    below = sections_of([tmp_path / "bench" / "runs"])[0].headline
    assert [(row[0].text, row[-1].value) for row in below.rows] == [("vanilla", 2), ("eow", 1)]
    (tmp_path / "empty").mkdir()
    with pytest.raises(EowError, match="no predictions"):
        report([tmp_path / "empty"], tmp_path / "report.html")


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=5))
@example([1e6, 999999.9999999999])
@example([1e12, 1e12 - 1])
def test_an_axis_holds_its_values_and_has_ticks(values: list[float]) -> None:
    low, high = around(values)
    assert low <= min(values) + 1e-9 * (high - low)
    assert high >= max(values) - 1e-9 * (high - low)
    marks = ticks(low, high)
    assert 2 <= len(marks) <= 12
    assert all(one < two for one, two in pairwise(marks))


# The chains' profile


def profiled(**options: object) -> tuple[EOW, Batches]:
    settings = {"chains": 8, "start": "features", "noise": 0.0, "trust": 0.0, "steps": 3, "step": 0.5, **options}
    method = EOW(small_model(), EOWOptions(**settings), 3, (4,), seed=3)
    method.prepare(torch.device("cpu"))
    inputs, labels = blobs(60)
    data = Dataset("blobs", "train", inputs, labels, ("a", "b", "c"))
    return method, Batches(data, 60, Transform((0.0,) * 4, (1.0,) * 4), torch.device("cpu"))


def test_the_profile_is_the_energy_of_chains_stepped_by_hand() -> None:
    method, batches = profiled(chains=60)
    found = method.diagnose(batches)
    x, _ = next(iter(batches.epoch(0)))
    z, tail = method.model.encoder(x).detach(), method.model.tail
    linear = next(module for module in tail.modules() if isinstance(module, torch.nn.Linear))
    for step in range(4):
        energy = tail(z).log_softmax(1)[:, -1].detach().double()
        assert found["mean"][step] == pytest.approx(energy.mean().item(), abs=1e-5)
        assert found["low"][step] == pytest.approx(np.quantile(energy.numpy(), 0.1), abs=1e-5)
        moved, z = z, (z - 0.25 * linear_energy_gradient(linear, z)).detach()
    assert found["step"] == [0, 1, 2, 3]
    first = method.model.encoder(x)
    assert found["reach"] == pytest.approx((moved.norm(dim=1).mean() / first.norm(dim=1).mean()).item(), rel=1e-5)
    assert json.loads(json.dumps(found)) == found


def test_chains_that_end_far_beyond_the_features_are_told_of(trained: list[Path], tmp_path: Path) -> None:
    copied = tmp_path / "eow"
    shutil.copytree(trained[-1], copied)
    summary = storage.read_json(copied / "summary.json")
    for reach, told in (
        (1.5, ""),
        (12.0, "those of eow at 12 times their norm"),
        (None, "those of eow without any bound"),
    ):
        storage.write_json(copied / "summary.json", {**summary, "chain": {**summary["chain"], "reach": reach}})
        figure = chains(gather([copied])[0])
        assert told in figure.missing
        assert bool(figure.missing) == bool(told)


def test_chains_that_climb_are_told_of(trained: list[Path], tmp_path: Path) -> None:
    copied = tmp_path / "eow"
    shutil.copytree(trained[-1], copied)
    summary, config = (storage.read_json(copied / name) for name in ("summary.json", "config.json"))
    steps = len(summary["chain"]["mean"])
    for last, noise, told in (
        (-3.0, 1e-3, ""),
        (None, 1e-3, ""),
        (-1.0, "langevin", ""),
        (-1.0, 1e-3, "those of eow from -3 to -1"),
    ):
        mean = [-3.0] * (steps - 1) + [last]
        storage.write_json(copied / "summary.json", {**summary, "chain": {**summary["chain"], "mean": mean}})
        storage.write_json(copied / "config.json", {**config, "method": {**config["method"], "noise": noise}})
        figure = chains(gather([copied])[0])
        assert told in figure.missing
        assert bool(figure.missing) == bool(told)


@pytest.mark.parametrize("start", ["noise", "buffer", "gaussian", "mixed"])
def test_a_profile_changes_nothing_and_is_seeded(start: str) -> None:
    method, batches = profiled(start=start, noise=0.1, buffer_size=20, steps=250)
    tensors = {**dict(method.named_parameters()), **dict(method.named_buffers())}
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    state, own = torch.get_rng_state(), method.stream.get_state()
    first = method.train().diagnose(batches)
    assert first == method.diagnose(batches)
    assert method.training
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(own, method.stream.get_state())
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors.items())
    assert len(first["step"]) == len(first["mean"]) == 101
    assert first["step"][-1] == 250


def test_a_method_without_chains_has_no_profile(trained: list[Path]) -> None:
    method, batches = profiled(steps=0)
    assert method.diagnose(batches) is None
    assert runs.load(trained[0]).method.diagnose(batches) is None


# The page, in a browser


@pytest.fixture(scope="module")
def chromium() -> Iterator:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if shutil.which("chromium") is None:
        pytest.skip("there is no chromium on this machine")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def written(trained: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(trained, tmp_path_factory.mktemp("page") / "report.html")[0]


def opened(chromium, path: Path, **options):
    """The page, with all that it complains of or asks for."""
    tab = chromium.new_context(accept_downloads=True, **options).new_page()
    tab.complaints, tab.requests = [], []
    tab.on("console", lambda message: tab.complaints.append(message.text))
    tab.on("pageerror", lambda error: tab.complaints.append(str(error)))
    tab.on("request", lambda request: tab.requests.append(request.url))
    tab.goto(path.as_uri())
    return tab


def test_the_page_complains_of_nothing_and_asks_for_nothing(chromium, written: Path) -> None:
    tab = opened(chromium, written)
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith("data:")] == [written.as_uri()]
    assert tab.locator("figure svg[role=img]").count() >= 10
    shown = tab.locator("section").inner_text()
    for word in ("Reliability", "Risk and coverage", "The unknown", "Corruptions", "The chains' energy", "Provenance"):
        assert word in shown
    assert tab.locator(".pictures img").count() >= 12
    assert tab.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")


@pytest.mark.parametrize("width", [375, 1200])
def test_the_page_fits_its_screen_in_light_and_dark(chromium, written: Path, width: int, tmp_path: Path) -> None:
    for scheme in ("light", "dark"):
        tab = opened(chromium, written, viewport={"width": width, "height": 800}, color_scheme=scheme)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        frame = "document.querySelector('[id$=-unknowns] .scroll')"
        assert width < 1200 or tab.evaluate(f"{frame}.scrollWidth <= {frame}.clientWidth")  # nothing to be found aside
        tab.screenshot(path=tmp_path / "page.png", full_page=True)
        pixels = np.asarray(Image.open(tmp_path / "page.png").convert("L"))
        assert np.median(pixels) > 235 if scheme == "light" else np.median(pixels) < 40
        assert (
            (pixels < 128).mean() if scheme == "light" else (pixels > 128).mean()
        ) > 0.01  # there is something to see
        smallest = tab.evaluate("Math.min(...[...document.querySelectorAll('.panel svg')].map("
                                "svg => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))")  # fmt: skip
        assert smallest * 11 >= 9  # the figures' text, in pixels


def test_a_click_or_a_key_sorts_by_number(chromium, trained: list[Path], tmp_path: Path) -> None:
    [section] = sections_of(trained)
    values = (9.5, 100.0, -3.0, 10.2, None)
    rows = [[Cell(f"row {place}"), Cell("–") if value is None else Cell(f"{value}", value)]
            for place, value in enumerate(values)]  # fmt: skip
    made = replace(section, headline=Table("headline", "Made up", ["name", "number"], rows, "."))
    (tmp_path / "page.html").write_text(page.page([made]), encoding="utf-8")
    tab = opened(chromium, tmp_path / "page.html")
    table = tab.locator("table").first
    column, title = table.locator("tbody td"), table.locator("thead th").nth(1)
    title.locator("button").click()
    assert column.all_inner_texts() == ["-3.0", "9.5", "10.2", "100.0", "–"]
    assert title.get_attribute("aria-sort") == "ascending"
    title.locator("button").press("Enter")
    assert column.all_inner_texts() == ["100.0", "10.2", "9.5", "-3.0", "–"]
    assert title.get_attribute("aria-sort") == "descending"
    table.locator("thead button").first.press("Space")
    assert table.locator("tbody th").all_inner_texts() == [f"row {place}" for place in range(5)]
    assert title.get_attribute("aria-sort") is None


def test_downloads_hold_the_numbers_shown(chromium, trained: list[Path], written: Path, tmp_path: Path) -> None:
    tab = opened(chromium, written)
    [section] = sections_of(trained)
    buttons = tab.locator("button.download")
    assert buttons.count() == len(section.with_numbers)
    texts = {}
    for index in range(buttons.count()):
        if index == 8:  # Chromium stops a page's downloads after ten in a row
            tab.close()
            tab = opened(chromium, written)
            buttons = tab.locator("button.download")
        with tab.expect_download() as coming:
            buttons.nth(index).click()
        coming.value.save_as(tmp_path / "file.csv")
        texts[coming.value.suggested_filename] = (tmp_path / "file.csv").read_text(encoding="utf-8")
    for part in section.with_numbers:
        header, rows = rows_of(part)
        lines = list(csv.reader(io.StringIO(texts[f"{section.slug}-{part.key}.csv"])))
        assert lines[0] == header
        for line, row in zip(lines[1:], rows, strict=True):
            for cell, value in zip(line, row, strict=True):
                assert cell == value if isinstance(value, str) else float(cell) == value
    shown = tab.locator("table").first.locator("tbody tr").all()
    for line, row in zip(read_csv(texts[f"{section.slug}-headline.csv"]), shown, strict=True):
        assert row.locator("td").first.inner_text().split()[0] == f"{float(line['accuracy %']):.2f}"
    assert tab.complaints == []


def test_hostile_names_are_shown_as_text(chromium, trained: list[Path], tmp_path: Path) -> None:
    folder = copy(trained[2], tmp_path / '<img src=x onerror=hacked=1>&"')
    change_manifest(folder, "test", classes=(HOSTILE * 2)[:8])
    change_manifest(folder, "noise", name=HOSTILE[0])
    tab = opened(chromium, report([folder], tmp_path / "page.html")[0])
    assert tab.complaints == []
    assert tab.evaluate("typeof window.hacked") == "undefined"
    assert tab.evaluate("document.querySelectorAll('[onerror]').length") == 0
    text = tab.locator("section").inner_text()
    assert HOSTILE[0] in text
    assert '<img src=x onerror=hacked=1>&"' in text
    named = " ".join(tab.locator(".said").all_inner_texts())
    assert any(name in named for name in HOSTILE)
    assert tab.locator("script").count() == 2
    for kind in ("md", "latex", "csv", "png"):
        report([folder], tmp_path / f"r.{kind}", kind)
    assert "<script>" not in (tmp_path / "r.md").read_text()
