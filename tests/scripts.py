"""Scripts that are no modules of the package, for the tests of what they do."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent


def script(place: str) -> ModuleType:
    """The script at that place below the project's root, as a module of its own."""
    path = ROOT / place
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
