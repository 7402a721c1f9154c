"""What Sphinx does here beyond its own: contents, a check of the API page, links of names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

from docs.site import contents

API, INSTRUCTIONS = "docs/reference/api", "docs/reference/instructions"
STUB = contents.ROOT / "numba_tma" / "__init__.pyi"
#: The page with other systems' names, of which some are ours, too.
MIGRATION = "docs/guide/migration"
#: A public name at the beginning of a literal: `tma.Tile(...)`, `tma.ptx.mapa`, `Barrier.wait`.
_USE = re.compile(r"(?:tma\.)?(ptx\.\w+)|tma\.(\w+)|([A-Z]\w+)\.\w")
#: A class beside these: `Tile`, `TilePipeline(4, x=TILE)`.
_CLASS = re.compile(r"([A-Z]+[a-z]\w+)(?:\(|$)")
_LOG = logging.getLogger(__name__)


def public_names() -> list[str]:
    """Return the names that the package's stub exports."""
    return re.findall(r"^from .* import (\w+) as \1$", STUB.read_text(), re.M)


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Put the contents behind the home page's text."""
    if name == contents.HOME:
        source[0] += contents.toctrees()


def index_names(app: Sphinx, doctree: nodes.document) -> None:
    """Note where the reference has each name."""
    page = app.env.docname
    if page == API:
        app.env.metadata[page]["names"] = _api_entries(doctree)
    elif page == INSTRUCTIONS:
        app.env.metadata[page]["names"] = _instructions(doctree)


def _api_entries(doctree: nodes.document) -> dict[str, str]:
    """Return the anchors of the API's entries; warn of a name that has not one with text."""
    entries: dict[str, list[nodes.section]] = {}
    for section in doctree.findall(nodes.section):
        if title := re.fullmatch(r"(?:tma\.)?([A-Za-z_]\w+)", section[0].astext()):
            entries.setdefault(title[1], []).append(section)
    for name in public_names():
        found = entries.get(name, [])
        if len(found) != 1:
            _LOG.warning("%s has %d entries, not 1", name, len(found), location=API)
        elif not any(isinstance(child, nodes.paragraph) for child in found[0]):
            _LOG.warning("%s has no docstring", name, location=API)
    return {name: found[0]["ids"][0] for name, found in entries.items()}


def _instructions(doctree: nodes.document) -> dict[str, str]:
    """Give each instruction's row an anchor; return them."""
    found = {}
    for row in doctree.findall(nodes.row):
        call = next(row[0].findall(nodes.literal), None)
        if call is not None and "(" in call.astext():
            name = call.astext().partition("(")[0]
            call["ids"].append(name)
            found[f"ptx.{name}"] = name
    return found


class LinkNames(SphinxPostTransform):
    """Link the public names in the text to the reference."""

    default_priority = 400
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        """Wrap each literal that begins with a name that the reference has."""
        here = self.env.docname
        anchors = {
            name: (page, anchor)
            for page in (API, INSTRUCTIONS)
            for name, anchor in self.env.metadata[page]["names"].items()
        }
        for literal in list(self.document.findall(nodes.literal)):
            text = literal.astext()
            use = _USE.match(text) or (here != MIGRATION and _CLASS.match(text)) or None
            page, anchor = anchors.get(use[use.lastindex], ("", "")) if use else ("", "")
            if page not in ("", here) and not _is_linked(literal):
                uri = f"{self.app.builder.get_relative_uri(here, page)}#{anchor}"
                literal.replace_self(nodes.reference("", "", literal.deepcopy(), refuri=uri))


def _is_linked(node: nodes.Node) -> bool:
    return any(isinstance(above, nodes.reference | nodes.title) for above in _ancestors(node))


def _ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    while node.parent is not None:
        node = node.parent
        yield node


def setup(app: Sphinx) -> dict[str, Any]:
    """Register everything with Sphinx."""
    app.connect("source-read", add_contents)
    app.connect("doctree-read", index_names)
    app.add_post_transform(LinkNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
