"""Every page is in the site's contents, and every relative link of a page leads to something."""

import json
import re

import pytest

from docs.site import contents

ROOT = contents.ROOT
PAGES = sorted(contents.pages())
LINK = re.compile(r"(?<!\\)\]\((?!https?:)([^()\s]*)\)|<a href=\"(?!https?:)([^\"]*)\"")


def file_of(page):
    found = [ROOT / f"{page}{suffix}" for suffix in (".md", ".ipynb")]
    return next(path for path in found if path.exists())


def text_of(path):
    """Return a page's Markdown, without code; of a notebook the cells that are Markdown."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def anchors_of(path):
    """Return the anchors of a page's headings, as forges make them."""
    headings = re.findall(r"^#+ (.*?)\s*$", text_of(path), re.M)
    bare = (re.sub(r"[^\w -]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in bare}


def broken_links(path):
    """List the relative links of a page that lead nowhere."""
    text = re.sub(r"`[^`\n]*`", "", text_of(path))
    broken = []
    for link in (first or second for first, second in LINK.findall(text)):
        name, _, anchor = link.partition("#")
        target = (path.parent / name) if name else path
        if "=" in anchor:
            continue  # choices of the explorer
        if not target.exists() or (
            anchor and target.suffix in (".md", ".ipynb") and anchor not in anchors_of(target)
        ):
            broken.append(link)
    return broken


def test_every_page_is_in_the_contents_once():
    listed = [name for names in contents.sections().values() for name in names]
    assert sorted([contents.HOME, *listed]) == PAGES


def test_the_contents_follow_the_index_and_the_numbers_of_notebooks():
    start = contents.sections()["Start"]
    assert start[0] == contents.INDEX and contents.sections()["Guide"][0] == "docs/guide/pipelines"
    notebooks = [name for name in start if re.match(r"notebooks/\d", name)]
    assert notebooks == sorted(notebooks) and len(notebooks) >= 3


def test_new_pages_are_found(tmp_path):
    for name in ("README.md", "docs/guide/a.md", "docs/guide/b.md", "notebooks/README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("# Title\n")
    for name in ("02_b", "10_c", "01_a"):
        (tmp_path / f"notebooks/{name}.ipynb").write_text("{}")
    start = "[2](../notebooks/02_b.ipynb) [all](../notebooks/README.md)"
    index = f"# Index\n## Start\n{start}\n## Guide\n[b](guide/b.md#x), [x](y.py)"
    (tmp_path / "docs/README.md").write_text(f"{index}\n[a](guide/a.md) [b](guide/b.md)\n")
    assert contents.sections(tmp_path) == {
        "Start": [
            *("docs/README", "notebooks/README"),
            *("notebooks/01_a", "notebooks/02_b", "notebooks/10_c"),
        ],
        "Guide": ["docs/guide/b", "docs/guide/a"],
    }
    assert contents.pages(tmp_path) == {"README", *sum(contents.sections(tmp_path).values(), [])}
    assert ":caption: Guide\n\ndocs/guide/b\ndocs/guide/a\n```" in contents.toctrees(tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    assert broken_links(file_of(page)) == []


def test_a_broken_link_is_seen(tmp_path):
    page = tmp_path / "page.md"
    text = (
        "# It `is`, here\n[a](#it-is-here) [b](#there) [c](page.md#x) [d](no.md) [e](https://x.y)"
    )
    page.write_text(f"{text}\n```\n[f](g)\n```\n[`h`](i) `[j](k)`\n")
    assert broken_links(page) == ["#there", "page.md#x", "no.md", "i"]
