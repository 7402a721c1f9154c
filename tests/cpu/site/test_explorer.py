"""The explorer of the site computes what the library does, and is usable: docs/explorer.md.

A headless Chromium runs the page's own modules.
"""

import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest

import numba_tma as tma
from numba_tma.backend.numba_cuda import kernels
from numba_tma.host import packed_rules
from numba_tma.host.architectures import ARCHITECTURES
from numba_tma.host.boxes import Copies, copies_violations
from numba_tma.host.dtypes import as_dtype, names
from numba_tma.host.layout import MAX_BOX, Swizzle, Tile, box_violations
from tests import chromium, explorer_facts

DOCS = Path(__file__).parents[3] / "docs"
BLOCK = re.compile(r"^<div id=.*?</script>$", re.M | re.S)
PATTERNS = ("row", "column", "ldmatrix", "fragment")
DRAWN = 240
IN_BROWSER = """
(async () => {
  const { explore } = await import("../_static/explorer/explorer.js");
  return %s.map(({ state, indices }) => {
    try {
      const { tile, violations, pipeline, most, reads, python } = explore(state);
      const now = reads.violation ? null : reads.instruction(+state.step, +state.warp);
      return {
        tile: `${tile}`, pipeline: `${pipeline}`, violations, most, python,
        sizes: [tile.nbytes, tile.sharedNbytes, tile.alignment, tile.pitch, tile.slab,
                tile.numSlabs, tile.slabNbytes, tile.copies],
        box: tile.box, offsets: indices.map((index) => tile.offset(...index)),
        bytes: [pipeline.nbytes, pipeline.txBytes, pipeline.storageNbytes],
        refused: reads.violation,
        lanes: now && now.lanes.map(({ lane, offset }) => [lane, offset]),
        now: now && now.phases.reduce((sum, phase) => sum + phase.wavefronts, 0),
        total: reads.violation ? null : reads.total,
      };
    } catch (error) {
      return { error: error.message };
    }
  });
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A browser, and the address of the block of docs/explorer.md on a page of its own."""
    if not chromium.CHROMIUM:
        pytest.skip(chromium.MISSING)
    folder = tmp_path_factory.mktemp("site")
    (folder / "docs").mkdir()
    (folder / "_static").symlink_to(DOCS / "site" / "static")
    block = BLOCK.search((DOCS / "explorer.md").read_text())[0]
    (folder / "docs" / "explorer.html").write_text(
        '<!doctype html><meta name="viewport" content="width=device-width">'
        f'<link rel="icon" href="data:,"><link rel="stylesheet" href="../_static/site.css">{block}'
    )
    with chromium.served(folder) as url, chromium.opened() as page:
        yield page, f"{url}/docs/explorer.html"


@pytest.fixture
def page(browser):
    """The explorer's first state in a desktop's window."""
    page, address = browser
    page.resize(1200)
    page.open(address)
    yield page
    assert not page.problems


def test_the_tables_are_the_librarys():
    assert explorer_facts.FILE.read_text() == explorer_facts.page(), "stale: `make goldens`"


# -------------------------------------------------------------- equal to the library


def drawn(number):
    """Return a random configuration: what the form holds."""
    r = random.Random(number)
    ndim = r.choice((1, 2, 2, 2, 2, 3, 4, 5, r.choice((5, 6))))
    inner = r.choice((8, 16, 32, 64, 80, 128, 192, 256, 512, r.randint(1, 300)))
    outer = [
        r.choice((1, 2, 3, 4, 8, 8 if ndim > 2 else 64, 16, r.randint(0, 300 if ndim == 2 else 9)))
        for _ in range(ndim - 1)
    ]
    threads = 32 * r.randint(1, 8)
    return {
        "dtype": r.choice(names if r.random() < 0.5 else ("bf16", "f32", "e4m3")),
        "shape": ",".join(map(str, [*outer, inner])),
        "swizzle": r.choice([s.name for s in Swizzle]),
        "map": r.choice(("tile", "box")),
        "pattern": r.choice(PATTERNS),
        "width": r.choice(("element", "4", "8", "16")),
        "threads": str(threads),
        "warp": str(r.randrange(threads // 32)),
        "step": r.choice(("0", "0", "1", "3")),
        "target": r.choice([f"sm_{a.number}a" for a in ARCHITECTURES.values() if a.cluster]),
        "stages": r.choice(("", "", "1", "3", "5", "700")),
        "tiles": str(r.randint(1, 4)),
        "k_group": r.choice(("1", "1", "2", "3")),
        "other": r.choice(("0", "1000", "50000")),
    }


def tile_of(state):
    shape = tuple(map(int, state["shape"].split(",")))
    return Tile(shape, state["dtype"], Swizzle[state["swizzle"]])


def indices_of(state):
    """Return up to 32 random indices of a tile's elements."""
    extents = [int(extent) for extent in state["shape"].split(",")]
    r = random.Random(state["shape"])
    if min(extents) < 1:
        return []
    return [[r.randrange(extent) for extent in extents] for _ in range(32)]


def broken_rules(state, tile):
    """Return what the library says of a map of such tiles."""
    found = []
    if tile.dtype.is_unpacked:
        row = tile.dtype.nbytes(128)
        found += packed_rules.packed_violations(tile.dtype, 0, (1, row), (row, 1), tile.swizzle)
    if state["map"] == "box":
        return found + box_violations(tile.shape, tile.dtype, tile.swizzle)
    copies = Copies(tile, (1,) * tile.ndim)
    unmoved = copies_violations(copies, None)
    box = copies.cut
    if unmoved:
        limits = (*[MAX_BOX] * (tile.ndim - 1), MAX_BOX // tile.dtype.words)
        box = tuple(map(min, box, limits))
    return found + unmoved + box_violations(box, tile.dtype, tile.swizzle)


def pipeline_of(state, tile, stages):
    count = int(state["tiles"])
    tiles = dict.fromkeys("abcd"[:count] if count > 1 else "x", tile)
    return tma.TilePipeline(stages, k_group=int(state["k_group"]), debug=False, **tiles)


def too_large(state, pipeline):
    """Return the error of a pipeline that its target has no room for."""
    target = state["target"].removeprefix("sm_")
    limit = ARCHITECTURES[int(target[:-1])].shared
    try:
        kernels._check_sum(repr(pipeline), pipeline.shared_parts(""), limit, target)
    except kernels.TypingError as error:
        return [str(error)]
    return []


def vectors_of(state, tile):
    """Return the elements of a vector, its bytes, and whether the library lets a kernel read it."""
    width = {"ldmatrix": "16", "fragment": "4"}.get(state["pattern"], state["width"])
    nbytes = tile.dtype.bits // 8 if width == "element" else int(width)
    vector = nbytes * 8 // tile.dtype.bits
    rows, across = math.prod(tile.shape[:-1]), tile.shape[-1] // vector if vector else 0
    down, beside = {"ldmatrix": (16, 2), "fragment": (8, 4)}.get(state["pattern"], (1, 1))
    whole = not tile.dtype.is_packed and vector and tile.shape[-1] % vector == 0
    return vector, nbytes, whole and rows % down == 0 and across % beside == 0


def offsets_of(state, tile):
    """Return the offset that each lane of each warp's reads takes, -1 for none: (reads, lanes)."""
    vector, _, _ = vectors_of(state, tile)
    rows, across = math.prod(tile.shape[:-1]), tile.shape[-1] // vector
    threads = int(state["threads"])
    grid = np.arange(rows * across).reshape(rows, across)
    if state["pattern"] == "column":
        order = grid.T.reshape(-1)
    elif state["pattern"] == "row":
        order = grid.reshape(-1)
    else:
        down, beside = (16, 2) if state["pattern"] == "ldmatrix" else (8, 4)
        blocks = grid.reshape(rows // down, down, across // beside, beside)
        lanes = (2, 0, 3, 1) if state["pattern"] == "ldmatrix" else (2, 0, 1, 3)
        order = blocks.transpose(lanes).reshape(-1)
    order = np.pad(order, (0, -order.size % threads), constant_values=-1).reshape(-1, 32)
    row, column = np.divmod(np.maximum(order, 0), across)
    index = (*np.unravel_index(row, tile.shape[:-1] or (1,)), column * vector)[-tile.ndim :]
    return np.where(order < 0, -1, tile.offset(*index))


def wavefronts(offsets, nbytes):
    """Return the wavefronts of reads, and the fewest that their bytes take."""
    words = (offsets.reshape(-1, 1) + np.arange(0, nbytes, 4)) // 4
    words[offsets.reshape(-1) < 0] = -1
    phases = np.sort(words.reshape(-1, min(32, 128 // nbytes) * words.shape[1]))
    new = np.diff(phases, prepend=-1) > 0  # the first of equal words
    banks = np.zeros((len(phases), 32), int)
    np.add.at(banks, (np.nonzero(new)[0], phases[new] % 32), 1)
    return int(banks.max(1).sum()), int((-(-banks.sum(1) // 32)).sum())


def test_the_page_computes_what_the_library_does(page):
    given = [drawn(number) for number in range(DRAWN)]
    asked = [{"state": state, "indices": indices_of(state)} for state in given]
    answers = page.value(IN_BROWSER % json.dumps(asked))
    met = {"made": 0, "broken": 0, "read": 0}
    for case, answer in zip(asked, answers, strict=True):
        check(case["state"], case["indices"], answer, met)
    assert met["made"] >= 200 and met["broken"] >= 50 and met["read"] >= 100, met


def check(state, indices, answer, met):
    try:
        tile = tile_of(state)
    except ValueError as error:
        assert answer == {"error": str(error)}, state
        return
    met["made"] += 1
    assert answer["tile"] == repr(tile)
    assert answer["sizes"] == [
        *(tile.nbytes, tile.shared_nbytes, tile.alignment, tile.pitch, tile.slab),
        *(tile.num_slabs, tile.slab_nbytes, Copies(tile, (1,) * tile.ndim).count),
    ], state
    assert tuple(answer["box"]) == tile.box, state
    assert answer["offsets"] == [tile.offset(*index) for index in indices], state

    limit, other = explorer_facts.facts()["SHARED"][state["target"]], int(state["other"])
    fits = [pipeline_of(state, tile, 1).nbytes + other <= limit]
    most = answer["most"]
    assert (most > 0) == fits[0]
    if most:
        assert pipeline_of(state, tile, most).nbytes + other <= limit, state
        assert pipeline_of(state, tile, most + 1).nbytes + other > limit, state
    pipeline = pipeline_of(state, tile, int(state["stages"] or max(most, 1)))
    assert answer["pipeline"] == repr(pipeline)
    assert answer["bytes"] == [pipeline.nbytes, pipeline.tx_bytes, pipeline.storage_nbytes], state
    made: dict = {}
    exec(answer["python"], made)
    assert (made["TILE"], made["PIPE"]) == (tile, pipeline)

    rules = broken_rules(state, tile)
    errors = rules + too_large(state, pipeline)
    met["broken"] += bool(rules)
    assert answer["violations"][: len(errors)] == errors, state
    rest = answer["violations"][len(errors) :]
    taken = not errors[len(rules) :] and pipeline.nbytes + other > limit
    assert len(rest) == taken, state

    _, nbytes, readable = vectors_of(state, tile)
    assert bool(answer["refused"]) == (not readable), state
    if readable:
        met["read"] += 1
        offsets = offsets_of(state, tile)
        total = wavefronts(offsets, nbytes)
        assert tuple(answer["total"].values()) == total, state
        number = int(state["step"]) * int(state["threads"]) // 32 + int(state["warp"])
        now = offsets[number] if number < len(offsets) else np.full(32, -1)
        assert answer["lanes"] == [[n, int(at)] for n, at in enumerate(now) if at >= 0], state
        assert answer["now"] == wavefronts(now, nbytes)[0], state


@pytest.mark.parametrize(
    ("swizzle", "pattern", "expected"),
    [("NONE", "column", (256, 32)), ("B128", "column", (32, 32)), ("NONE", "row", (32, 32))],
)
def test_known_conflicts(swizzle, pattern, expected):
    """Without a swizzle the 8 rows of a phase meet in one bank, with B128 in all of them."""
    state = {"pattern": pattern, "width": "16", "threads": "128"}
    tile = Tile((32, 64), as_dtype("bf16"), Swizzle[swizzle])
    assert wavefronts(offsets_of(state, tile), 16) == expected


# -------------------------------------------------------------------------- the page


def shown(page):
    return page.value("document.querySelector('#tile-explorer').innerText")


def choices(page):
    return page.value(
        "Object.fromEntries(new FormData(document.querySelector('#tile-explorer form')))"
    )


def follow(page, fragment):
    """Go to a fragment of the page's address, as a link does."""
    page.value(
        "new Promise((done) => { addEventListener('hashchange', done, { once: true });"
        f" location.hash = {json.dumps(fragment)}; }}).then(() => 1)"
    )


def test_the_address_has_the_choices(page):
    first = choices(page)
    assert "64 wavefronts, 64 without conflicts" in shown(page)
    page.value(
        "(() => { const { swizzle, shape } = document.forms[0].elements;"
        " swizzle.value = 'NONE'; shape.value = '32, 128';"
        " shape.dispatchEvent(new Event('input', { bubbles: true })); })()"
    )
    changed, text = choices(page), shown(page)
    assert page.value("location.hash") == "#shape=32,128&swizzle=NONE"
    assert "512 wavefronts, 64 without conflicts" in text
    follow(page, "#a-heading")
    assert choices(page) == changed
    follow(page, "#dtype=f32&pattern=row&stages=3")
    assert choices(page) == first | {"dtype": "f32", "pattern": "row", "stages": "3"}
    address = page.value("location.href")
    page.open("about:blank")
    page.open(address)
    assert choices(page) == first | {"dtype": "f32", "pattern": "row", "stages": "3"}
    follow(page, "#shape=32,128&swizzle=NONE")
    assert (choices(page) | {"shape": ""}, shown(page)) == (changed | {"shape": ""}, text)


@pytest.mark.parametrize(
    ("fragment", "message"),
    [
        ("#shape=64,0", "tile axis 1 is 0; a tile needs at least 1 element"),
        ("#shape=1,99999999999999999999", "are more than this page counts"),
        ("#shape=500,500", "No block has room for Tile((500, 500), bf16, B128): it is not drawn"),
        ("#shape=64,six", "shape is an integer, or a tuple of one for each axis"),
        ("#shape=300,64&map=box", "box axis 0 is 300; TMA copies 1 to 256 elements along an axis"),
        ("#dtype=f32&map=box", "swizzle B128 spans 128 B: use 32 or fewer elements"),
        ("#shape=64,60", "TMA needs a multiple of 16 B along the innermost axis: use 56 or 64"),
        ("#stages=40", "but a block has 232,448 B on sm_90a: use fewer stages or smaller tiles"),
        ("#threads=100", "Threads is a multiple of 32 from 32 to 1,024"),
        ("#warp=4", "Warp is a whole number from 0 to 3"),
        ("#dtype=e2m1", "e2m1 has 4 bits, no whole number of bytes"),
    ],
)
def test_impossible_choices_are_explained(page, fragment, message):
    assert message not in shown(page)
    follow(page, fragment)
    assert message in shown(page)


def test_every_choice_is_reached_by_the_keyboard(page):
    controls = page.value("[...document.forms[0].elements].filter((e) => e.name).map((e) => e.id)")
    met = []
    for _ in range(len(controls) + 2):
        page.press("Tab", 9)
        met.append(page.value("document.activeElement.id || document.activeElement.tagName"))
    assert met == [*controls, "TD", "PRE"]
    page.value("document.querySelector('td[tabindex=\"0\"]').focus()")
    detail = "document.querySelector('.detail').textContent"
    assert page.value(detail) == "byte 0, banks 0 to 3: (0, 0) to (0, 7), read by lane 0"
    page.press("ArrowDown", 40)
    page.press("ArrowRight", 39)
    assert page.value(detail) == "byte 144, banks 4 to 7: (1, 0) to (1, 7), read by lane 1"
    page.press("End", 35)
    assert page.value("document.activeElement.getAttribute('aria-label')") == page.value(detail)
    assert page.value(detail) == "byte 240, banks 28 to 31: (1, 48) to (1, 55)"


def test_everything_has_a_name_for_a_screen_reader(page):
    unnamed = page.value(
        "[...document.querySelectorAll('input,select')].filter((e) => !e.labels.length)"
        ".concat([...document.querySelectorAll('[role=img],[role=grid],meter,section,pre,td')]"
        ".filter((e) => !e.ariaLabel)).map((e) => e.outerHTML)"
    )
    assert unnamed == []


@pytest.mark.parametrize(
    "fragment", ["", "#shape=2,64,80&dtype=f32&tiles=4&k_group=2&map=box&stages=40&swizzle=B64"]
)
def test_a_phone_shows_it_without_scrolling_sideways(page, fragment):
    page.resize(360)
    if fragment:
        follow(page, fragment)
    width = page.value("[document.documentElement.scrollWidth, innerWidth]")
    assert width == [360, 360]
    cut = page.value(
        "[...document.querySelectorAll('dd,li,p,td .lanes')]"
        ".filter((e) => e.getBoundingClientRect().right > innerWidth).length"
    )
    assert cut == 0
