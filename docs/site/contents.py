"""The contents of the site: what docs/README.md links, section by section.

The page is the index on a forge, and the one list of pages. Notebooks are found by their numbers.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = "README"
INDEX = "docs/README"
NOTEBOOKS = "notebooks/README"
#: The files that are pages, seen from the repository's root.
PATTERNS = ("*.md", "docs/*.md", "docs/*/*.md", "ptx/*.md", "notebooks/*.md", "notebooks/*.ipynb")
_LINK = re.compile(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)")


def pages(root: Path = ROOT) -> set[str]:
    """Return the names of all pages: their paths from the root, without the suffix."""
    found = (path for pattern in PATTERNS for path in root.glob(pattern))
    return {_name(path, root) for path in found}


def sections(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the pages of each section of the index, in order, each page once."""
    index = root / f"{INDEX}.md"
    _, *parts = re.split(r"^## ", index.read_text(), flags=re.M)
    found: dict[str, list[str]] = {}
    seen = {HOME}
    for number, part in enumerate(parts):
        links = [(index.parent / link).resolve() for link in _LINK.findall(part)]
        links = [index.resolve(), *links] if number == 0 else links
        names = [_name(path, root.resolve()) for path in links]
        if NOTEBOOKS in names:
            place = names.index(NOTEBOOKS) + 1
            names[place:place] = sorted(_name(p, root) for p in root.glob("notebooks/*.ipynb"))
        new = [name for name in dict.fromkeys(names) if name not in seen]
        if new:
            found[part.partition("\n")[0]] = new
            seen.update(new)
    return found


def toctrees(root: Path = ROOT) -> str:
    """Return the contents as directives for the home page."""
    return "".join(
        "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", "", *names, "```", ""])
        for title, names in sections(root).items()
    )


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).with_suffix("").as_posix()
