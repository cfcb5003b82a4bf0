"""Whether a run's JSON files hold what the report is about to draw: they may come from anyone, wrong in any way."""

from pathlib import Path
from typing import Any

from eow.errors import EowError
from eow.evaluate import is_number
from eow.storage import IMPORTED, made_again

WORDS = ("event", "reason", "source")  # of a line of the log; everything else in it is a number
PROFILE = ("step", "mean", "low", "high")


def is_numbers(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(map(is_number, values))


def is_profile(values: Any) -> bool:
    """Numbers, or None where the energy was none."""
    return isinstance(values, list) and bool(values) and all(each is None or is_number(each) for each in values)


def check_run(folder: Path, config: dict[str, Any], summary: dict[str, Any], log: list[dict[str, Any]]) -> None:
    faults = {"config.json": fault_of_config(config), "summary.json": fault_of_summary(summary),
              "log.jsonl": next(filter(None, map(fault_of_line, log)), None)}  # fmt: skip
    for name, fault in faults.items():
        if fault:
            raise EowError(f"{folder / name} is damaged ({fault}): {made_again(folder / name)}")


def fault_of_config(config: dict[str, Any]) -> str | None:
    if type(config["seed"]) is not int or abs(config["seed"]) >= 2**63:
        return f"its seed is {config['seed']!r}"
    for section in ("data", "model", "method", "train"):
        if not isinstance(config[section], dict):
            return f"its {section} is not a section"
        if section != "train" and not isinstance(config[section].get("name"), str):
            return f"its {section} has no name"
    method, imported = config["method"], config.get("recipe") == IMPORTED
    if method["name"] == "eow" and not imported and not is_number(method.get("lam")):
        return "its method has no λ"
    if not isinstance(config["data"].get("root", ""), str):
        return "its data lies nowhere"
    return None


def fault_of_summary(summary: dict[str, Any]) -> str | None:
    seconds = summary["train_seconds"]
    if not (seconds is None or is_number(seconds)) or not isinstance(summary["weights"], str):
        return "it does not say what was trained"
    sets = summary["sets"]
    if not isinstance(sets, dict) or not all(isinstance(each, dict) for each in sets.values()):
        return "it does not say on what data"
    if any(each.get("official") not in (True, False, None) for each in sets.values()):
        return "it does not say whether the data is official"
    chain = summary.get("chain")
    if not isinstance(chain, dict) or not {*PROFILE} <= chain.keys():
        return None  # a run without chains, or an old one
    steps, energies = chain["step"], [chain[name] for name in PROFILE[1:]]
    if not is_numbers(steps) or not all(is_profile(each) and len(each) == len(steps) for each in energies):
        return "its chain's energies are not numbers"
    reach = chain.get("reach")
    if reach is not None and not (is_number(reach) and 0 <= reach < float("inf")):
        return "its chains end nowhere"
    return None


def fault_of_line(line: dict[str, Any]) -> str | None:
    for key, value in line.items():
        if not (isinstance(value, str | None) if key in WORDS else is_number(value)):
            return f"{key} is {value!r:.40} in a line"
    if type(line.get("epoch", 0)) is not int or ("epoch" not in line and ("lr" in line or "event" in line)):
        return "a line is of no epoch"
    return None
