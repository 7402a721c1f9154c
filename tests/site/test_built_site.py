"""The site that `make docs` built, as a stranger meets it: links, a phone's width, light and dark.

`.ci/run` executes these tests after the build; `make test` does not, since it has no Sphinx.
"""

import html.parser
import re
from urllib.parse import unquote, urlsplit

import pytest

from docs.site import contents
from tests import chromium

SITE = contents.ROOT / "docs" / "_build" / "html"
PAGES = sorted(contents.pages())

pytestmark = pytest.mark.skipif(not SITE.exists(), reason="`make docs` has not built the site")


class Tags(html.parser.HTMLParser):
    """What a page refers to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Note a tag's links and anchor."""
        given = dict(attrs)
        self.links.update(given[name] for name in ("href", "src") if given.get(name))
        if given.get("id"):
            self.anchors.add(given["id"])


@pytest.fixture(scope="module")
def tags():
    return {path: Tags(path.read_text()) for path in SITE.rglob("*.html")}


def test_every_page_is_built(tags):
    assert {SITE / f"{name}.html" for name in PAGES} <= tags.keys()


def test_no_link_is_broken(tags):
    broken = []
    for path, page in tags.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or "=" in parts.fragment:
                continue  # another site, or choices of the explorer
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = tags[target].anchors if target in tags else {parts.fragment}
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append(f"{path.relative_to(SITE)}: {link}")
    assert not broken, "\n".join(sorted(broken))


def test_nothing_comes_from_the_network(tags):
    loaded = re.compile(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:)?//', re.I)
    assert [str(path) for path in tags if loaded.search(path.read_text())] == []


@pytest.fixture(scope="module")
def browser():
    if not chromium.CHROMIUM:
        pytest.skip(chromium.MISSING)
    with chromium.served(SITE) as url, chromium.opened() as page:
        page.resize(360)
        yield page, url


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_shows_a_page_without_scrolling_sideways(browser, name):
    page, url = browser
    page.open(f"{url}/{name}.html")
    widths = page.value("[document.documentElement.scrollWidth, innerWidth]")
    assert widths == [360, 360]
    assert page.value("document.querySelectorAll('h1').length") == 1
    assert not page.problems


def test_the_first_page_leads_to_the_home(browser):
    page, url = browser
    page.open(f"{url}/index.html")
    page.wait("location.pathname.endsWith('/README.html')")


def test_search_finds_a_page(browser):
    page, url = browser
    page.open(f"{url}/search.html?q=wgmma")
    page.wait("document.querySelectorAll('#search-results li a').length > 3")


def test_the_explorer_works_in_the_site(browser):
    page, url = browser
    page.open(f"{url}/docs/explorer.html#shape=32,128&swizzle=NONE")
    text = page.value("document.querySelector('#tile-explorer').innerText")
    assert "512 wavefronts, 64 without conflicts" in text and not page.problems


def test_pictures_and_the_explorer_follow_a_dark_page(browser):
    page, url = browser
    page.open(f"{url}/docs/explorer.html")
    for theme, dark in (("light", False), ("dark", True)):
        page.value(f"document.body.dataset.theme = {theme!r}")
        colour = page.value(
            "getComputedStyle(document.querySelector('#tile-explorer input')).color"
        )
        lightness = sum(map(int, re.findall(r"\d+", colour)[:3])) / 3
        assert (lightness > 128) is dark
