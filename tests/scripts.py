"""Scripts that are no modules of the package, for the tests of what they do."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent


def script(place: str) -> ModuleType:
    """The script at that place below the project's root, as a module of its own; what lies beside it can be imported,
    as when it is run."""
    path = ROOT / place
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module
