"""The table: means, deviations, marks and the paper's figures, from run folders whose figures are known."""

import csv
import json
import statistics
from pathlib import Path

import pytest
from scipy.stats import ttest_rel

from eow import storage
from eow.bench.grid import Grid, make_grid
from eow.bench.table import compared, holm, make_table, markdown, text_cells, write_table
from eow.config import to_table
from eow.errors import EowError
from eow.report import report

FIGURES = {  # accuracy by method and seed
    "vanilla": [0.901, 0.904, 0.899, 0.902],
    "mixup": [0.911, 0.913, 0.910, 0.913],
    "eow": [0.951, 0.955, 0.949, 0.953],
}


def small_grid(columns: list, methods: tuple = ("vanilla", "mixup", "eow"), seeds: int = 4, axes: tuple = ()) -> Grid:
    table = {
        "grid": {"name": "small", "title": "Small", "methods": list(methods), "seeds": seeds, "columns": columns,
                 "paper": {"table": "table1_calibration", "match": {"dataset": "data.name", "model": "model.name"}}},
        "settings": {"data": {"name": "mnist"}}, "axis": list(axes), "quick": {},
    }  # fmt: skip
    return make_grid(table, "quick", "", (), 0, {})


def write_runs(grid: Grid, folder: Path, accuracy: dict[str, list[float]]) -> Path:
    for cell in grid.cells:
        run = folder / cell.name
        run.mkdir(parents=True)
        known = {"accuracy": accuracy[cell.config.method.name][cell.seed], "unknown": 0.0}
        known["ece"] = 1 - known["accuracy"]
        if cell.config.method.name == "eow":
            known["unknown"] = 0.25
        (run / "config.json").write_text(json.dumps(to_table(cell.config)))
        (run / "summary.json").write_text(json.dumps({"metrics": {"test": known}, "train_seconds": 3.5}))
        lines = [{"epoch": 0, "steps": 10, "ce": 1.0, "seconds": 1.0}]
        lines += [{"epoch": i, "steps": 10, "ce": 1.0, "energy": 0.1, "seconds": s} for i, s in ((1, 10.0), (2, 20.0))]
        lines += [{"epoch": 2, "steps": 10, "energy": 0.1, "seconds": 40.0}]
        (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def rows_of(table: dict) -> dict[str, dict]:
    return {row["method"]: row for row in table["rows"]}


def test_one_seed_has_no_note_on_deviations_and_marks(tmp_path: Path) -> None:
    for seeds in (1, 2):
        grid = small_grid(["accuracy"], seeds=seeds)
        table = make_table(grid, write_runs(grid, tmp_path / str(seeds), FIGURES), {})
        assert ("±" in table["note"], "v+" in markdown(table)) == (seeds > 1, seeds > 1)


def test_means_deviations_and_the_papers_figures(tmp_path: Path) -> None:
    grid = small_grid(["accuracy", "ece", "unknown", "brier", "seconds", "seconds_per_iteration"])
    table = make_table(grid, write_runs(grid, tmp_path, FIGURES), {})
    for method, values in FIGURES.items():
        figure = rows_of(table)[method]["figures"]["accuracy %"]
        assert figure["mean"] == pytest.approx(sum(values) / 4)
        assert figure["std"] == pytest.approx((sum((v - sum(values) / 4) ** 2 for v in values) / 3) ** 0.5)
        assert list(figure["by_seed"].values()) == values
    assert [row["figures"]["ECE %"]["paper"] for row in table["rows"]] == [1.73, 1.74, 0.88]
    eow = rows_of(table)["eow"]["figures"]
    assert eow["unknown"]["mean"] == 0.25
    assert rows_of(table)["vanilla"]["figures"]["unknown"]["mean"] is None  # 0 everywhere: it has none
    assert eow["Brier"]["mean"] is None
    # The median over the epochs with an energy term: ten steps in 10, 20 and 40 seconds.
    assert eow["s/iteration"]["mean"] == pytest.approx(2)
    header, rows = text_cells(table)
    assert header[:5] == ["method", "accuracy %", "paper", "ECE %", "paper"]
    accuracy = FIGURES["vanilla"]
    assert rows[0][1] == f"{100 * statistics.mean(accuracy):.2f} ± {100 * statistics.stdev(accuracy):.2f} b-"
    assert rows[0][2] == "98.32"
    assert rows[0][5] == "-"


def test_a_column_that_the_papers_table_does_not_have_has_none_beside_it(tmp_path: Path) -> None:
    about = {"name": "small", "methods": ["vanilla"], "seeds": 1, "columns": ["accuracy", "nll"]}
    about["paper"] = {"table": "table4_sgld_position", "match": {}}
    grid = make_grid({"grid": about}, "quick", "", (), 0, {})
    table = make_table(grid, write_runs(grid, tmp_path, FIGURES), {})
    assert text_cells(table)[0] == ["method", "accuracy %", "paper", "NLL"]


def test_marks_follow_a_paired_t_test_corrected_after_holm(tmp_path: Path) -> None:
    grid = small_grid(["accuracy", "ece"])
    table = make_table(grid, write_runs(grid, tmp_path, FIGURES), {})
    marks = {method: row["figures"]["accuracy %"]["marks"] for method, row in rows_of(table).items()}
    # mixup is the best baseline: three pairs, each tested once.
    p = {pair: ttest_rel(FIGURES[pair[0]], FIGURES[pair[1]]).pvalue for pair in
         (("mixup", "vanilla"), ("eow", "vanilla"), ("eow", "mixup"))}  # fmt: skip
    assert marks["eow"]["v"]["p"] == pytest.approx(p["eow", "vanilla"])
    assert marks["eow"]["b"]["p"] == pytest.approx(p["eow", "mixup"])
    assert marks["vanilla"]["b"]["p"] == pytest.approx(p["mixup", "vanilla"])
    assert marks["eow"]["v"]["p_holm"] == pytest.approx(min(1, 3 * min(p.values())))
    assert [marks["eow"][letter]["mark"] for letter in "vb"] == ["v+", "b+"]
    assert marks["vanilla"]["b"]["mark"] == "b-"
    assert "v" not in marks["vanilla"]
    assert "b" not in marks["mixup"]
    # ECE is better when it is lower, and here it is 1 - accuracy: the same marks.
    assert rows_of(table)["eow"]["figures"]["ECE %"]["marks"]["v"]["mark"] == "v+"
    assert "v+ b+" in markdown(table)


def test_holm_on_an_example_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_no_mark_without_two_seeds_or_without_spread() -> None:
    one, other = {"by_seed": {"0": 0.5}}, {"by_seed": {"0": 0.9, "1": 0.8}}
    assert compared(one, other) is None
    alike = {"by_seed": {"0": 0.8, "1": 0.7}}
    assert compared(alike, other) is None  # 0.1 apart with every seed
    assert compared({"by_seed": {"0": 0.8, "1": 0.71, "5": 0.1}}, other) is not None


def test_rows_are_compared_within_the_same_data(tmp_path: Path) -> None:
    axis = {
        "title": "width",
        "points": [{"label": "8", "model": {"hidden": [8]}}, {"label": "9", "model": {"hidden": [9]}}],
    }
    grid = small_grid(["accuracy"], ("vanilla", "eow"), axes=(axis,))
    table = make_table(grid, write_runs(grid, tmp_path, FIGURES), {})
    marks = [(row["labels"]["width"], row["method"], row["figures"]["accuracy %"]["marks"]) for row in table["rows"]]
    # Vanilla is the best baseline of both, so that one comparison a width says both things.
    assert [(width, method, sorted(each)) for width, method, each in marks] == [
        ("8", "vanilla", []), ("8", "eow", ["b", "v"]), ("9", "vanilla", []), ("9", "eow", ["b", "v"])
    ]  # fmt: skip
    assert marks[1][2]["v"]["p_holm"] == marks[1][2]["v"]["p"]


def test_failed_cells_are_in_the_table_with_their_reason(tmp_path: Path) -> None:
    grid = small_grid(["accuracy"])
    runs = write_runs(grid, tmp_path, FIGURES)
    eow = [cell.name for cell in grid.cells if cell.config.method.name == "eow"]
    mixup = [cell.name for cell in grid.cells if cell.config.method.name == "mixup"]
    table = make_table(grid, runs, {**dict.fromkeys(mixup, "no memory"), eow[2]: "the loss became nan"})
    _, rows = text_cells(table)
    assert rows[1][:2] == ["mixup", "failed"]
    assert rows[2][0] == "eow (1 of 4 failed)"
    kept = [value for seed, value in enumerate(FIGURES["eow"]) if seed != 2]
    assert rows_of(table)["eow"]["figures"]["accuracy %"]["mean"] == pytest.approx(statistics.mean(kept))
    text = markdown(table)
    assert "- failed: eow, seed 2: the loss became nan" in text
    assert text.count("no memory") == 4


def test_the_same_runs_give_the_same_bytes_and_the_csv_all_figures(tmp_path: Path) -> None:
    grid = small_grid(["accuracy", "unknown"])
    runs = write_runs(grid, tmp_path / "runs", FIGURES)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_table(make_table(grid, runs, {}), tmp_path / name)
    for file in ("table.json", "table.md", "table.csv"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    lines = list(csv.DictReader((tmp_path / "one" / "table.csv").read_text().splitlines()))
    seeds = [float(line["accuracy %"]) for line in lines if line["method"] == "eow" and line["seed"].isdigit()]
    assert seeds == pytest.approx([100 * value for value in FIGURES["eow"]])
    mean = next(line for line in lines if line["method"] == "eow" and line["seed"] == "mean")
    assert float(mean["accuracy %"]) == pytest.approx(100 * statistics.mean(FIGURES["eow"]))
    assert float(mean["accuracy % (paper)"]) == 98.91
    assert next(line for line in lines if line["method"] == "vanilla")["unknown"] == ""


def test_a_report_on_a_damaged_table_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for text in ("", "{", "[]", "{}", '{"rows": 3}', '{"rows": [{}]}'):
        (tmp_path / "table.json").write_text(text)
        with pytest.raises(EowError, match=r"table\.json does not name its runs: remove it and run the bench again"):
            report([tmp_path], tmp_path / "report.md", "md")


def test_a_table_that_may_not_be_read_is_not_to_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> str:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "runs").mkdir()
    (tmp_path / "table.json").write_text('{"rows": []}')
    monkeypatch.setattr(storage, "read_text", refused)
    with pytest.raises(EowError, match=r"table\.json cannot be read: Permission denied; give a file that you may read"):
        report([tmp_path], tmp_path / "report.md", "md")
