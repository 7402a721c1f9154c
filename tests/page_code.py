"""The Python of a page in docs, as a module that tests can import."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[1] / "docs"


def module_of(page: str, folder: Path) -> ModuleType:
    """Return a module of a page's Python, written to `folder` so that it has a source."""
    text = (DOCS / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.S | re.M)
    file = folder / f"{Path(page).stem.replace('-', '_')}.py"
    file.write_text("\n\n".join(blocks))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module
