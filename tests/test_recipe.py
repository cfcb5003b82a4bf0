"""Branches of a shared trunk are the runs they would have been by themselves (eow/training/branching.py), a grid is
filled with them (benchmarks/branches.py), and the searches are what they say (benchmarks/recipe.py, settings.py)."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scripts import script

from eow.bench import bench
from eow.bench.grid import read_grid
from eow.config import resolve
from eow.data.sets import load_sets
from eow.errors import EowError
from eow.metrics import ece, nll
from eow.runs import begin
from eow.training.branching import branch, never, trunk
from eow.training.distributed import Place
from eow.training.loop import Diverged, Training

recipe, branches = script("benchmarks/recipe.py"), script("benchmarks/branches.py")
settings = script("benchmarks/settings.py")
ROOT = Path(__file__).parent.parent
DATA = {"name": "digits", "holdout": 0.3}
HIDDEN = {"hidden": [16, 16]}


@pytest.mark.parametrize(
    ("cut", "unknown", "onset"),
    [
        ("penultimate", "linear", "as_is"),
        ("stage1", "quadratic", "as_is"),
        ("stage1", "convex", "as_is"),
        ("penultimate", "quadratic", "settled"),
    ],
)
def test_a_branch_is_the_whole_run(cut: str, unknown: str, onset: str) -> None:
    place = Place(torch.device("cpu"))
    common = {"data": DATA, "train": {"epochs": 3}}
    earlier = resolve({**common, "model": HIDDEN, "method": {"start_epoch": 2}})
    method = {"start_epoch": 1, "onset": onset}
    config = resolve({**common, "model": {**HIDDEN, "cut": cut, "unknown": unknown}, "method": method})
    data = load_sets(config.data, 0)
    start = trunk(begin(earlier, data, place), 1)
    parted, whole = begin(config, data, place), begin(config, data, place)
    after, lines = list(branch(parted, start)), list(whole.epochs())
    assert [line["ce"] for line in (*start.lines, *after)] == pytest.approx([line["ce"] for line in lines])
    same_state(parted, whole)
    assert any(name.endswith("square") for name in parted.state()) == (unknown != "linear")


def same_state(found: Training, expected: Training) -> None:
    assert found.state().keys() == expected.state().keys()
    for name, each in expected.state().items():
        torch.testing.assert_close(found.state()[name], each, msg=name)


@pytest.mark.parametrize("other", [{"start_width": 3.0}, {"buffer_size": 50}], ids=["width", "size"])
def test_a_branch_has_a_replay_buffer_of_its_own(other: dict[str, Any]) -> None:
    place, chains = Place(torch.device("cpu")), {"start": "buffer", "buffer_size": 100, "chains": 20, "start_epoch": 1}
    common = {"data": DATA, "train": {"epochs": 2}, "model": HIDDEN}
    config = resolve({**common, "method": {**chains, **other}})
    data = load_sets(config.data, 0)
    start = trunk(begin(resolve({**common, "method": chains}), data, place), 1)
    parted, whole = begin(config, data, place), begin(config, data, place)
    list(branch(parted, start)), list(whole.epochs())
    same_state(parted, whole)


def test_a_branch_goes_on_with_the_trunk_s_rollbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An undone epoch halves the rate of all that follow and gives them other random numbers."""
    place = Place(torch.device("cpu"))
    config = resolve({"data": DATA, "model": HIDDEN, "train": {"epochs": 3}, "method": {"start_epoch": 2}})
    data = load_sets(config.data, 0)

    def stumbling() -> Training:
        training = begin(config, data, place)
        one_epoch, stumbles = training.one_epoch, [1]

        def once(epoch: int, *rest: Any) -> dict[str, Any]:
            if epoch == 1 and stumbles:
                stumbles.pop()
                raise Diverged("made to")
            return one_epoch(epoch, *rest)

        monkeypatch.setattr(training, "one_epoch", once)
        return training

    start, whole, parted = trunk(stumbling(), 2), stumbling(), begin(config, data, place)
    assert [line.get("event") for line in start.lines] == [None, "rollback", None]
    after, lines = list(branch(parted, start)), list(whole.epochs())
    assert after[-1]["lr"] == lines[-1]["lr"]
    same_state(parted, whole)


GRID = """
[grid]
name = "small"
methods = ["vanilla", "temperature", "mixed_negatives", "eow"]
seeds = 2
columns = ["accuracy", "nll"]
[settings]
data = { name = "digits", holdout = "auto", outliers = ["noise"] }
model = { name = "mlp", hidden = [16, 16] }
"""


@pytest.mark.parametrize("name", ["table3-lambda", "table4-position", "release"])
def test_rows_that_differ_in_the_energy_term_alone_share_a_trunk(name: str) -> None:
    cells = read_grid(ROOT / "benchmarks" / f"{name}.toml", "quick").cells
    groups = branches.groups_of(cells)
    assert sum(len(energy) + len(vanilla) for energy, vanilla in groups) == len(cells)
    assert len(groups) == len({(cell.config.data.name, cell.seed) for cell in cells})


@pytest.mark.parametrize(
    "settings",
    [
        "train = { epochs = 3 }",
        'recipe = "release"\ntrain = { epochs = 9, lr = 0.003, warmup_steps = 10, batch = 256 }',
    ],
    ids=["modern", "release"],
)
def test_a_grid_of_branches_is_the_bench_s_own(settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "small.toml"
    file.write_text(GRID + settings)
    for seed in ("1", "0"):
        monkeypatch.setattr(sys, "argv", ["branches.py", str(file), "--out", str(tmp_path / "a"), "--seeds", seed])
        branches.main()
    made = {folder.name: folder.stat().st_mtime_ns for folder in (tmp_path / "a" / "runs").iterdir()}
    assert len(made) == 6  # vanilla, mixed_negatives and eow, twice
    marked = [name for name in made if '"branched"' in (tmp_path / "a" / "runs" / name / "log.jsonl").read_text()]
    assert marked == [name for name in made if "-vanilla-" in name]
    found, expected = (bench(file, tmp_path / out, jobs=1) for out in ("a", "b"))
    assert {name: (tmp_path / "a" / "runs" / name).stat().st_mtime_ns for name in made} == made  # not trained again
    rows = [{row["method"]: row["figures"] for row in table["rows"]} for table in (found, expected)]
    for method in ("mixed_negatives", "eow"):
        for column in ("accuracy %", "NLL"):
            assert rows[0][method][column]["by_seed"] == pytest.approx(rows[1][method][column]["by_seed"])
    # Vanilla's trunk has an unknown logit more: another network, trained alike.
    assert rows[0]["vanilla"]["NLL"]["mean"] == pytest.approx(rows[1]["vanilla"]["NLL"]["mean"], rel=0.2)
    if "release" not in settings:  # whose temperature is of a network that has not trained on the held-out part
        assert rows[0]["temperature"]["accuracy %"]["by_seed"] == rows[0]["vanilla"]["accuracy %"]["by_seed"]


def test_runs_that_are_no_branches_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = read_grid(ROOT / "benchmarks" / "demo.toml", "quick", only=("vanilla", "mixup", "eow"), seeds=1).cells
    left = branches.left_to_bench(cells, branches.groups_of(cells))
    assert [cell.title for cell in left] == ["vanilla, seed 0", "mixup, seed 0"]  # eow holds samples out, vanilla none
    command = ["branches.py", str(ROOT / "benchmarks" / "demo.toml"), "--out", str(tmp_path / "a"), "--only", "vanilla"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(EowError, match="nothing can branch: use `eow bench` for vanilla, seed 0; vanilla, seed 1"):
        branches.main()
    assert not (tmp_path / "a").exists()


def test_a_script_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "recipe.py"), "nope.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: there is no file nope.json: give a JSON file of variants\n"
    assert list(tmp_path.iterdir()) == []  # whether found.json can be written was tried


def test_vanilla_s_branch_says_what_the_known_logits_say() -> None:
    place = Place(torch.device("cpu"))
    common = {"data": DATA, "model": HIDDEN, "train": {"epochs": 3}}
    config = resolve({**common, "model": {**HIDDEN, "cut": "stage1", "unknown": "quadratic"}})
    data = load_sets(config.data, 0)
    training = never(begin(config, data, place))
    list(branch(training, trunk(begin(config, data, place), 1)))
    closed = branches.without_unknown(training.method, resolve({**common, "method": {"name": "vanilla"}}))
    x = torch.rand(50, 64)
    training.method.eval(), closed.eval()
    torch.testing.assert_close(closed.model(x), training.method.model(x)[:, :-1])
    assert not training.method.model.head.square.any()


def test_figures_are_those_of_the_logits(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    labels = stream.integers(0, 3, 200)
    logits = stream.normal(size=(200, 4)) + 2 * np.eye(4)[labels]
    outlier = {"far": {"logits": logits + np.array([0, 0, 0, 50.0])}}
    found = recipe.measured({"logits": logits, "labels": labels}, outlier, 0.1, 50)
    h = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert found["raw"]["nll"] == pytest.approx(nll(h[:, :3], labels))
    assert found["raw"]["unknown"] == pytest.approx(h[:, 3].mean())
    assert found["K"]["nll"] == pytest.approx(nll(h[:, :3] / h[:, :3].sum(1, keepdims=True), labels))
    assert found["auroc"]["far"]["unknown"] == 1
    assert found["auroc"]["far"]["confidence"] == 0.5


def test_a_search_s_temperature_is_judged_by_samples_it_has_not_seen() -> None:
    """Logits that are three times the log-odds of their labels: T is 3, and what is left is the labels' own doubt."""
    stream = np.random.default_rng(0)
    odds = stream.normal(size=(40_000, 3)) * 2
    labels = (odds + stream.gumbel(size=odds.shape)).argmax(1)
    found = recipe.tempered(3 * odds, labels, 5000)
    h = np.exp(odds) / np.exp(odds).sum(1, keepdims=True)
    assert found["T"] == pytest.approx(3, rel=0.03)
    assert found["nll"] == pytest.approx(nll(h, labels), rel=0.005)
    assert found["ece"] == pytest.approx(ece(h.max(1), h.argmax(1) == labels), abs=0.003)


def test_a_trial_is_measured_on_what_it_was_not_trained_on() -> None:
    """Against a training by hand with the same settings, and no test set is read for it."""
    common = {"data": DATA, "model": HIDDEN, "method": {"name": "ova_dm"}, "train": {"epochs": 3}, "seed": 0}
    row, data = settings.trial("train.lr=0.01 method.loss=two_sigmoid", common, None)
    wishes = {"method": {"name": "ova_dm", "loss": "two_sigmoid"}, "train": {"epochs": 3, "lr": 0.01}}
    training = begin(resolve({**common, **wishes}), data, Place(torch.device("cpu")))
    list(training.epochs())
    method = training.method.eval()
    with torch.no_grad():
        said = method.answer(data.transform(torch.from_numpy(data.holdout.inputs)))
    correct = said.label.numpy() == data.holdout.labels
    assert row["held_out"] == len(correct)
    assert row["accuracy"] == pytest.approx(correct.mean())
    of_k = (said.probs / said.probs.sum(1, keepdim=True)).double().numpy()
    assert row["nll_of_k"] == pytest.approx(nll(of_k, data.holdout.labels), rel=1e-5)
    assert len(row["epochs"]) == 3


def test_a_trial_that_diverges_says_why_and_settings_of_the_data_are_refused() -> None:
    common = {"data": DATA, "model": HIDDEN, "method": {"name": "vanilla"}, "train": {"epochs": 2, "rollbacks": 0}}
    row, data = settings.trial("train.optimizer=sgd train.lr=1e18 train.schedule=constant", common, None)
    assert row["trouble"].endswith("look for extreme inputs, or lower train.lr")
    with pytest.raises(EowError, match="data is the same in all trials"):
        settings.trial("data.limit=20", common, data)
