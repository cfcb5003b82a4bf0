"""Grid files: which cells they make, what tells cells apart, and errors that name the key and the file."""

import os
import tomllib
from pathlib import Path

import numpy as np
import pytest
from problems import blobs

from eow import paper, storage
from eow.bench.beside import paper_figure
from eow.bench.columns import FIGURES, OF_OUTLIERS, RANKINGS, SCORES, column_of, figures_of, value_at
from eow.bench.grid import Grid, read_grid
from eow.bench.hashes import config_hash, files_hash
from eow.config import resolve, to_table
from eow.errors import EowError
from eow.methods import METHODS
from eow.runs import train

BENCHMARKS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.toml"))
WANTED = {
    "demo", "table1-mnist", "table1-cifar10", "table1-cifar100", "table1-tiny-imagenet", "table2-ood",
    "figure3-corruption", "table3-lambda", "table4-position", "release",
}  # fmt: skip
RECIPE = {"cifar100", "cifar10", "mnist"}  # of this package: all images, fewer epochs
SHARING = {  # tables of the paper whose quick size is the runs of a grid of ours, in one of its sizes
    "table1-cifar100": ("cifar100", "quick"),
    "table1-cifar10": ("cifar10", "quick"),
    "table2-ood": ("cifar100", "quick"),
    "figure3-corruption": ("cifar100", "quick"),
}
BRANCHES = ("table3-lambda", "table4-position")  # all images too: a branch is cheap
TEXT = """
[grid]
name = "small"
methods = ["vanilla", "eow"]
seeds = 2
columns = ["accuracy", "ece"]
[settings]
data = { name = "digits" }
[settings.train]
epochs = 3
[quick]
[full.grid]
seeds = [4, 7, 9]
[full.settings.train]
epochs = 5
"""


def grid_of(folder: Path, text: str, size: str = "quick", **others) -> Grid:
    file = folder / "small.toml"
    file.write_text(text, encoding="utf-8")
    return read_grid(file, size, **others)


def test_a_grid_is_read_once_so_that_it_may_be_a_pipe(tmp_path: Path) -> None:
    """As a shell's <(...) is one."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as file:
        file.write(TEXT)
    with os.fdopen(reader):
        assert read_grid(f"/dev/fd/{reader}", "quick").text == TEXT


def test_there_is_a_file_for_every_table_and_figure() -> None:
    assert {file.stem for file in BENCHMARKS} == WANTED | RECIPE


@pytest.mark.parametrize("file", BENCHMARKS, ids=lambda file: file.stem)
def test_a_file_says_what_it_costs_and_reads_in_both_sizes(file: Path) -> None:
    opening = file.read_text(encoding="utf-8").split("\n[")[0]
    assert all(line.startswith("#") for line in opening.strip().splitlines())
    for word in (
        "quick",
        "full",
        f"eow bench benchmarks/{file.name}",
        "--size full",
        "Expected",
        "epochs",
        "seed",
        "images",
    ):
        assert word in opening, word
    assert any(word in opening for word in ("minute", "hour"))
    assert any(word in opening for word in ("H200", "CPU cores"))
    quick, full = (read_grid(file, size) for size in ("quick", "full"))
    assert quick.name == full.name == file.stem
    for cheap, dear in zip(quick.cells[-1:], full.cells[-1:]):
        assert cheap.config.train.epochs < dear.config.train.epochs or file.stem == "release"  # has few
        assert (cheap.config.data.limit > 0) == (file.stem not in {*RECIPE, *SHARING, *BRANCHES})
        assert dear.config.data.limit == 0
    assert len(quick.cells) <= len(full.cells)
    if file.stem != "demo":
        recipe = "modern" if file.stem in RECIPE else "release" if file.stem == "release" else "paper"
        assert {cell.config.recipe for cell in full.cells} == {recipe}
        assert {cell.seed for cell in full.cells} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(("name", "of"), SHARING.items())
def test_a_table_of_the_paper_is_made_of_the_runs_of_the_recipe_s_grid(name: str, of: tuple[str, str]) -> None:
    files = {file.stem: file for file in BENCHMARKS}
    known = {cell.name for cell in read_grid(files[of[0]], of[1]).cells}
    assert [cell.name for cell in read_grid(files[name], "quick").cells if cell.name not in known] == []


@pytest.mark.parametrize("name", sorted(RECIPE))
def test_a_grid_of_the_recipe_has_every_method(name: str) -> None:
    from eow.methods import METHODS

    (file,) = [each for each in BENCHMARKS if each.stem == name]
    assert {cell.config.method.name for cell in read_grid(file, "quick").cells} == {*METHODS}


def test_sizes_override_the_common_part(tmp_path: Path) -> None:
    quick, full = grid_of(tmp_path, TEXT), grid_of(tmp_path, TEXT, "full")
    assert [(cell.row, cell.seed) for cell in quick.cells] == [
        (("vanilla",), 0), (("vanilla",), 1), (("eow",), 0), (("eow",), 1)
    ]  # fmt: skip
    assert [cell.seed for cell in full.cells] == [4, 7, 9, 4, 7, 9]
    assert {cell.config.train.epochs for cell in full.cells} == {5}
    assert len(grid_of(tmp_path, TEXT, only=("eow",), seeds=3).cells) == 3
    laid_over = grid_of(tmp_path, TEXT, settings={"train": {"epochs": 9}})
    assert {cell.config.train.epochs for cell in laid_over.cells} == {9}


def test_axes_make_rows_and_those_of_one_method_leave_the_others_alone(tmp_path: Path) -> None:
    axes = """
[[axis]]
title = "width"
points = [{ label = "small", model.hidden = [8] }, { label = "large", model.hidden = [32], train.batch = 32 }]
[[axis]]
title = "λ"
key = "method.lam"
values = [1.0, 0.01]
methods = ["eow"]
"""
    grid = grid_of(tmp_path, TEXT + axes, seeds=1)
    assert [cell.row for cell in grid.cells] == [
        ("small", "", "vanilla"), ("small", "1", "eow"), ("small", "0.01", "eow"),
        ("large", "", "vanilla"), ("large", "1", "eow"), ("large", "0.01", "eow"),
    ]  # fmt: skip
    last = grid.cells[-1]
    assert (last.config.model.hidden, last.config.train.batch, last.config.method.lam) == ((32,), 32, 0.01)
    assert last.title == "large, λ 0.01, eow, seed 0"


def test_methods_may_have_settings_of_their_own(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, TEXT + "[methods.eow]\nmethod = { steps = 7 }\ntrain = { lr = 0.5 }\n")
    by_method = {cell.config.method.name: cell.config for cell in grid.cells}
    assert by_method["eow"].method.steps == 7
    assert by_method["eow"].train.lr == 0.5
    assert by_method["vanilla"].train.lr != 0.5


def test_post_hoc_methods_share_one_vanilla_run(tmp_path: Path) -> None:
    text = TEXT.replace('"eow"]', '"temperature", "trust_score"]')
    cells = grid_of(tmp_path, text, seeds=1).cells
    hidden = [cell for cell in cells if cell.hidden]
    assert len(hidden) == 1
    assert hidden[0].config.data.holdout == 0.1
    assert hidden[0].config.method.name == "vanilla"
    needs = {cell.config.method.name: cell.needs for cell in cells if not cell.hidden}
    assert needs == {"vanilla": "", "temperature": hidden[0].name, "trust_score": hidden[0].name}
    # Where the grid's own vanilla has the same held-out part, it is the one.
    alike = grid_of(tmp_path, text.replace('"digits"', '"digits", holdout = 0.1'), seeds=1).cells
    assert not any(cell.hidden for cell in alike)
    assert {cell.needs for cell in alike} == {"", next(c.name for c in alike if c.config.method.name == "vanilla")}


def test_a_hash_follows_what_decides_a_run_and_nothing_else(tmp_path: Path) -> None:
    table = to_table(grid_of(tmp_path, TEXT).cells[0].config)
    elsewhere = {**table, "train": {**table["train"], "device": "cuda:1"}, "data": {**table["data"], "root": "other"}}
    assert config_hash(elsewhere) == config_hash(table)
    assert config_hash({**table, "seed": 5}) != config_hash(table)
    assert config_hash({**table, "train": {**table["train"], "lr": 0.123}}) != config_hash(table)


def test_a_hash_follows_the_content_of_a_users_own_file(tmp_path: Path) -> None:
    inputs, labels = blobs()
    np.savez(tmp_path / "own.npz", x=inputs, y=labels)
    text = TEXT.replace('"digits"', f'"npz:{tmp_path}/own.npz"')
    before = grid_of(tmp_path, text).cells[0].name
    assert grid_of(tmp_path, text).cells[0].name == before
    np.savez(tmp_path / "own.npz", x=inputs + 1, y=labels)
    assert grid_of(tmp_path, text).cells[0].name != before


def test_a_hash_follows_the_files_that_a_reader_sees_and_their_names(tmp_path: Path) -> None:
    for place in ("set/cat/1.png", "set/dog/1.png", "elsewhere/1.png"):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text(place)
    (tmp_path / "set" / "emu").symlink_to(tmp_path / "elsewhere")  # a class may be a link
    folder = tmp_path / "set"
    hashes = [files_hash(f"folder:{folder}")]
    assert files_hash(f"permuted:folder:{folder}") == hashes[0]
    (folder / ".DS_Store").write_text("of the system's")
    (folder / "cat" / ".DS_Store").write_text("of the system's")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "2.png").write_text("hidden")
    assert files_hash(f"folder:{folder}") == hashes[0]
    (folder / "cat" / "1.png").rename(folder / "cat" / "0.png")  # the same bytes in the same order
    hashes.append(files_hash(f"folder:{folder}"))
    (folder / "cat" / "0.png").write_text("another")
    hashes.append(files_hash(f"folder:{folder}"))
    (tmp_path / "elsewhere" / "1.png").write_text("another")
    hashes.append(files_hash(f"folder:{folder}"))
    assert len({*hashes}) == 4
    one, two = tmp_path / "one", tmp_path / "two"
    for place, text in ((one / "a", "1b\n2"), (two / "a", "1"), (two / "b", "2")):  # the same when joined
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
    assert files_hash(f"folder:{one}") != files_hash(f"folder:{two}")


def test_the_cells_of_a_grid_read_a_users_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, labels = blobs()
    np.savez(tmp_path / "own.npz", x=inputs, y=labels)
    read: list[Path] = []

    def counted(path: Path) -> str:
        read.append(path)
        return storage.file_hash(path)

    monkeypatch.setattr("eow.bench.hashes.file_hash", counted)
    grid = grid_of(tmp_path, TEXT.replace('"digits"', f'"npz:{tmp_path}/own.npz"'))
    assert len(grid.cells) > 1
    assert read == [tmp_path / "own.npz"]


def test_a_hash_follows_what_permuted_outliers_are_made_of(tmp_path: Path) -> None:
    inputs, labels = blobs()
    np.savez(tmp_path / "own.npz", x=inputs, y=labels)
    text = TEXT.replace('"digits"', f'"digits", outliers = ["permuted:npz:{tmp_path}/own.npz"]')
    before = grid_of(tmp_path, text).cells[0].name
    np.savez(tmp_path / "own.npz", x=inputs + 1, y=labels)
    assert grid_of(tmp_path, text).cells[0].name != before


def matched(match: str) -> str:
    return f'seeds = 2\npaper = {{ table = "table1_calibration", match = {match} }}'


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ('name = "small"', 'name = "small"\nmethod = "eow"', "'method' in [grid]"),
        ("[quick]", "[quick]\nepochs = 3", "'epochs' in [quick]"),
        ("[quick]", "[extra]\na = 1\n[quick]", "'extra'"),
        ("epochs = 3", "epoch = 3", "train.epoch"),
        ('"eow"]', '"eow", "eaw"]', "'eaw'"),
        ('"eow"]', '"eow", "eow"]', "twice"),
        ('"ece"]', '"ecee"]', "'ecee'"),
        ("seeds = 2", "seeds = 0", "grid.seeds is 0"),
        ("seeds = 2", "seeds = [1, 1]", "each seed once"),
        ("seeds = 2", "", "no seeds"),
        ('name = "small"', 'name = "../up"', "grid.name"),
        ("[quick]", '[methods.jem]\nmethod = { steps = 1 }\n[quick]', "'jem'"),
        ("[quick]", '[[axis]]\ntitle = "a"\nkey = "train.lr"\n[quick]', "key and values"),
        ("[quick]", '[[axis]]\ntitle = "a"\nkey = "train.rate"\nvalues = [1]\n[quick]', "train.rate"),
        ("[quick]", '[[axis]]\ntitle = "a"\nkey = "train.lr"\nvalues = [1, 1]\n[quick]', "one label"),
        ("[quick]", '[[axis]]\ntitle = "a"\nkey = "seed"\nvalues = [1, 2]\n[quick]', "'a' sets seed: a grid's"),
        ("[quick]", '[[axis]]\ntitle = "a"\nkey = "method.name"\nvalues = ["jem"]\n[quick]', "'a' sets method.name: "),
        ("[quick]", '[[axis]]\ntitle = "a"\npoints = [{ label = "b", seed = 3 }]\n[quick]', "the axis 'a' sets seed"),
        ("[settings]", "[settings]\nseed = 3", "[settings] sets seed: a grid's methods and seeds are grid.methods"),
        ("[quick]", "[methods.eow]\nseed = 3\n[quick]", "[methods.eow] sets seed"),
        ("[quick]", "[methods.eow.method]\nname = 'jem'\n[quick]", "[methods.eow] sets method.name"),
        ("[quick]", "[quick.settings.method]\nname = 'jem'", "[settings] sets method.name"),
        ("[quick]", '[[axis]]\ntitle = "a"\npoints = [{ label = "b" }, { label = "c" }]\n[quick]',
         "the rows b / vanilla and c / vanilla are the same runs: leave one out"),
        ("[quick]", '[[axis]]\ntitle = "a"\nkey = "data.root"\nvalues = ["b", "c"]\n[quick]', "are the same runs"),
        ("seeds = 2", 'seeds = 2\npaper = { table = "table9" }', "'table9'"),
        ("seeds = 2", 'seeds = 2\npaper = { tabel = "table9" }', "'tabel'"),
        ("[quick]", "[quick", "TOML"),
        ("seeds = 2", 'seeds = 2\npaper = { table = [1] }', "grid.paper has no table"),
        ("seeds = 2", matched("3"), "grid.paper.match is 3"),
        ("seeds = 2", matched("{ dataset = 3 }"), "grid.paper.match.dataset is 3"),
        ("seeds = 2", matched('{ dataset = "seed" }'), "grid.paper.match.dataset is 'seed'"),
        ("seeds = 2", matched('{ dataset = "data.nam" }'), "grid.paper.match.dataset is 'data.nam'"),
        ("seeds = 2", matched('{ dataset = "train.name" }'), "grid.paper.match.dataset is 'train.name'"),
        ("seeds = 2", matched('{ dataset = "method.lamb" }'), "grid.paper.match.dataset is 'method.lamb'"),
        ("seeds = 2", matched('{ data = "data.name" }'), "grid.paper.match has 'data'"),
        ('name = "small"', "name = 3", "grid.name is 3"),
        ('name = "small"', 'name = "Small"', "small letters, digits, - and _ only"),
        ("seeds = 2", "seeds = 1000000000", "more than 10,000 seeds"),
        ("seeds = 2", 'seeds = 2\ncorruptions = "false"', "grid.corruptions is 'false'"),
        ("[quick]", "[quick]\nmethods = 3", "methods is 3"),
        ("[quick]", "[quick]\naxis = 3", "axis is 3"),
        ("[quick]", "[quick]\nsettings = 3", "the settings are 3"),
        ("[quick]", "[methods]\nvanilla = 3\n[quick]", "the settings are 3"),
        ("[quick]", '[[axis]]\ntitle = "a"\nkey = 3\nvalues = [1]\n[quick]', "key of the axis 'a' is 3"),
        ("[quick]", '[[axis]]\ntitle = "a"\nkey = "train.lr"\nvalues = [1]\nmethods = 3\n[quick]', "methods is 3"),
        ('"ece"]', '{ title = "t", path = "log", digits = -3 }]', "give 0 to 15"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_file(tmp_path: Path, old: str, new: str, names: str) -> None:
    assert old in TEXT
    with pytest.raises(EowError) as caught:
        grid_of(tmp_path, TEXT.replace(old, new))
    assert names in str(caught.value)
    assert "small.toml" in str(caught.value)


@pytest.mark.parametrize("settings", [{"seed": 3}, {"method": {"name": "jem"}}])
def test_the_command_line_lays_no_other_method_or_seed_over_a_grid(tmp_path: Path, settings: dict) -> None:
    with pytest.raises(EowError, match=r"--set sets .*grid\.seeds \(on the command line --only and --seeds\)"):
        grid_of(tmp_path, TEXT, settings=settings)


def test_names_and_options_of_methods_find_the_papers_row(tmp_path: Path) -> None:
    keys = '{ dataset = "data.name", lambda = "method.lam", method = "method.name" }'
    about = f'seeds = 1\npaper = {{ table = "table3_lambda", match = {keys} }}'
    text = (
        TEXT.replace("seeds = 2", about).replace('name = "small"', 'name = "small_1"').replace('"digits"', '"cifar10"')
    )
    grid = grid_of(tmp_path, text, settings={"method": {"lam": 0.01}}, only=("eow",))
    assert grid.name == "small_1"
    assert paper_figure(grid, column_of("nll"), grid.cells[0]) == 0.36


def test_what_is_asked_of_a_file_that_does_not_have_it(tmp_path: Path) -> None:
    with pytest.raises(EowError, match="no section \\[full\\]"):
        grid_of(tmp_path, TEXT.split("[full")[0], "full")
    with pytest.raises(EowError, match="'huge': choose quick or full"):
        grid_of(tmp_path, TEXT, "huge")
    with pytest.raises(EowError, match="'jem' is not among its methods"):
        grid_of(tmp_path, TEXT, only=("jem",))
    with pytest.raises(EowError, match="there is no file"):
        read_grid(tmp_path / "absent.toml", "quick")
    with pytest.raises(EowError, match="more than 10,000 seeds"):
        grid_of(tmp_path, TEXT, seeds=10**9)


def test_columns_find_their_figures() -> None:
    run = {"train_seconds": 2.5, "test": {"ece": 0.1, "bad": float("nan"), "yes": True}}
    run["svhn"] = {"accuracy_at": {"0": 0.2, "0.25": 0.3}, "auroc_unknown": 0.9}
    run["corruptions"] = {"severity": {"ece": [{"mean": 0.5}, {"mean": 0.6}]}}
    assert value_at(run, "corruptions.severity.ece.1.mean") == 0.6
    assert value_at(run, column_of("ece").path) == 0.1
    assert value_at(run, "svhn.accuracy_at.0.25") == 0.3
    assert value_at(run, "svhn.accuracy_at.0") == 0.2
    assert value_at(run, column_of("svhn.auroc_unknown").path) == 0.9
    assert value_at(run, column_of("seconds").path) == 2.5
    for path in ("test.nll", "test.bad", "test.yes", "test", "svhn.accuracy_at", "no.such.path"):
        assert value_at(run, path) is None, path
    with pytest.raises(EowError, match=r"column\.titel"):
        column_of({"title": "a", "path": "b", "titel": "c"})
    with pytest.raises(EowError, match="no path"):
        column_of({"title": "a"})


def test_the_columns_that_can_be_named_are_the_figures_of_a_run(tmp_path: Path) -> None:
    """Each one is there, and there is none that cannot be named, but what is no number or one of a threshold."""
    small = {"train": {"epochs": 1}, "model": {"hidden": [8]}, "data": {"unknown_classes": [8, 9]}}
    train(resolve(small, {"method": {"name": "eow"}}), tmp_path / "run", progress=False)
    figures = figures_of(tmp_path / "run")
    ranked = [f"{kind}_{score}" for kind in RANKINGS for score in SCORES]
    assert {*FIGURES} == {*figures["test"]}
    assert {*OF_OUTLIERS, *ranked} == {*figures["unknown"]} - {"kind", "accuracy_at", "coverage_at"}
    of_set = [f"unknown.{name}" for name in (*OF_OUTLIERS, *ranked)]
    for name in ("seconds", "seconds_per_iteration", *FIGURES, *of_set):
        assert value_at(figures, column_of(name).path) is not None, name


@pytest.mark.parametrize(
    "name", ["svhn.aupr_confidence", "svhn.auroc", "svhn.auroc_", "svhn.auroc_margin", "auroc_unknown", "svhn.ece"]
)
def test_a_column_that_no_run_has_is_refused(name: str) -> None:
    with pytest.raises(EowError, match=rf"no column '{name}'.*ap_unknown"):
        column_of(name)


def test_the_papers_figures_are_those_of_its_tables() -> None:
    assert paper.figure("table1_calibration", "ece_pct", {"dataset": "cifar100", "method": "eow"}) == 1.08
    assert paper.figure("table3_lambda", "nll", {"dataset": "cifar10", "lambda": 0.01, "method": "eow"}) == 0.36
    assert paper.figure("table3_lambda", "nll", {"dataset": "cifar10", "lambda": 0.5}) is None
    assert paper.figure("table4_sgld_position", "acc_pct", {"position": "input"}) == 73.94
    keys = {"ood_dataset": "cifar10", "method": "jem"}
    assert paper.figure("table2_ood_thresholds", "acc_pct", {**keys, "threshold": 0.75}) == 63.21
    assert paper.figure("table2_ood_thresholds", "acc_pct", {**keys, "threshold": 0.5}) is None  # a misprint
    with pytest.raises(EowError, match="no column 'colour'"):
        paper.figure("table3_lambda", "nll", {"colour": "red"})
    with pytest.raises(EowError, match="4 rows"):
        paper.figure("table2_ood_thresholds", "acc_pct", keys)


def test_every_figure_of_the_paper_has_its_place_in_a_table() -> None:
    """Of every number in the CSVs, one cell of one grid shows it."""
    shown: dict[str, list[float]] = {}
    for file in BENCHMARKS:
        grid = read_grid(file, "full", seeds=1)
        for cell in grid.cells:
            for column in grid.columns:
                found = None if cell.hidden else paper_figure(grid, column, cell)
                if found is not None:
                    shown.setdefault(grid.paper["table"], []).append(found)
    for table, names in {
        "table1_calibration": ("acc_pct", "ece_pct", "nll"), "table2_ood_thresholds": ("acc_pct",),
        "table3_lambda": ("acc_pct", "ece_pct", "nll"),
        "table4_sgld_position": ("acc_pct", "ece_pct", "seconds_per_iteration_k80"),
    }.items():  # fmt: skip
        printed = [float(row[name]) for row in paper.read(table) for name in names if row[name]]
        assert sorted(shown[table]) == sorted(printed), table


def test_the_demos_grid_comes_with_the_package() -> None:
    from importlib.resources import files

    packaged = (files("eow.bench") / "demo.toml").read_text(encoding="utf-8")
    assert packaged == (BENCHMARKS[0].parent / "demo.toml").read_text(encoding="utf-8")
    assert {*tomllib.loads(packaged)["grid"]["methods"]} == {*METHODS}  # every one
