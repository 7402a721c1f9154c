"""numba_tma.tools.pictures: what Jupyter shows."""

import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.colors import to_rgb

import numba_tma as tma
from numba_tma.host.mma_rules import fragment_coords
from numba_tma.simulator.trace import Event, EventTrace
from numba_tma.tools import map_types, pictures
from numba_tma.tools.pictures import svg

SVG = "{http://www.w3.org/2000/svg}"
ROLES = tma.Roles(load=tma.Warps(1), math=tma.Warpgroups(2))
A = tma.Tile((128, 64), "bf16", tma.Swizzle.B128)


def array_map(shape, tile, **options):
    return map_types._planned(np.zeros(shape, np.float32), tile, options)


def centre(text):
    return float(text.get("x")), float(text.get("y"))


def shown(thing):
    """Return the title, the texts and the tips of a picture, which is well-formed."""
    html = pictures.picture(thing)
    assert "<script" not in html and "http" not in html.replace(SVG[1:-1], "")
    root = ET.fromstring(html)
    (picture,) = root.iter(f"{SVG}svg")
    width, height = (float(picture.get(name)) for name in ("width", "height"))
    areas = list(picture.iter(f"{SVG}rect"))
    for area in areas:
        x, y, w, h = (float(area.get(name)) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width and 0 <= y <= y + h <= height
        if h == 12:  # of a legend
            assert w == h
    middles = [text for text in picture.iter(f"{SVG}text") if text.get("text-anchor") == "middle"]
    boxes = [[float(a.get(n)) for n in ("x", "y", "width", "height")] for a in areas]
    for text in middles:  # in the middle of an area, or above a column of them
        x, y = centre(text)
        around = [b for b in boxes if b[0] < x < b[0] + b[2]]
        assert any(x == pytest.approx(b[0] + b[2] / 2, abs=0.11) for b in around)
        inside = [b for b in around if b[1] < y < b[1] + b[3]]
        assert not inside or any(y == pytest.approx(b[1] + b[3] / 2, abs=0.11) for b in inside)
    assert all(centre(text)[1] + 7 <= height for text in picture.iter(f"{SVG}text"))
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    lines, filled = picture.findall(f"{SVG}g")
    assert lines.get("stroke") == filled.get("fill") == "currentColor"
    assert len(lines.findall(f"{SVG}rect")) == len(areas)
    assert len(filled.findall(f"{SVG}text")) == len(texts)
    tips = [tip.text for area in areas for tip in area.iter(f"{SVG}title")]
    return root.findtext("code"), texts, tips


def test_a_tile_shows_where_its_chunks_stand():
    title, texts, tips = shown(A)
    assert title == repr(A) and texts[0].startswith("16 KiB by each load, 16 KiB of shared memory")
    assert tips[0] == "row 0, bytes 0 to 15, at byte 0 of the tile"
    cells = np.array(tips).reshape(16, 8)
    for row in (1, 5):
        for group in range(8):
            chunk = int(tma.swizzle_index(tma.Swizzle.B128, row * 128 + 16 * group)) // 16 % 8
            assert cells[row, chunk].startswith(f"row {row}, bytes {16 * group} to ")
    assert texts[-1] == "the first 16 of 128 lines"


def test_tiles_of_other_rows():
    title, texts, _ = shown(tma.Tile((4, 3), "f32"))
    assert "rows of 12 B" in texts[0] and len(texts) == 1
    _, texts, tips = shown(tma.Tile((4, 8), "f32"))  # four rows in a line
    assert "row 0-3" in texts and len(tips) == 8
    _, _, tips = shown(tma.Tile((3, 8), "f32"))
    assert tips.count("padding") == 2


def test_a_map_shows_the_tiles_that_cover_its_array():
    _, texts, tips = shown(array_map((20, 72), (8, 32)))
    assert "3 x 3 tiles of 8 x 32 elements cover the array" in texts
    assert "outside: 4 rows and 24 columns of the last tiles" in texts
    assert tips[0] == "tile at (0, 0)" and "tile at (16, 64), a part of it outside" in tips
    assert tips[-1] == "20 x 72 elements"
    _, texts, tips = shown(array_map((4096, 8192), (8, 32)))
    assert tips == ["the first tile", "4096 x 8192 elements"]
    assert "512 x 256 tiles of 8 x 32 elements cover the array" in texts
    _, texts, _ = shown(array_map((2, 16, 64), (1, 8, 32)))
    assert "2 x 2 x 2 tiles of 1 x 8 x 32 elements cover the array" in texts


def test_tiles_of_a_map_lie_side_by_side_and_the_first_is_filled():
    for shape, filled in (((20, 72), 9), ((4096, 8192), 1)):
        areas = list(ET.fromstring(pictures.picture(array_map(shape, (8, 32)))).iter(f"{SVG}rect"))
        assert [area.get("fill") for area in areas] == [svg.HUES[0], *["none"] * filled]
    areas = list(ET.fromstring(pictures.picture(array_map((20, 72), (8, 32)))).iter(f"{SVG}rect"))
    tiles = [[float(area.get(n)) for n in ("x", "y", "width", "height")] for area in areas[:9]]
    left, top, width, height = tiles[0]
    for place, tile in enumerate(tiles):
        i, j = divmod(place, 3)
        assert tile == pytest.approx([left + j * width, top + i * height, width, height], rel=1e-3)


def test_a_pipeline_shows_its_memory_and_barriers():
    pipeline = tma.TilePipeline(4, a=A, b=A, producer=ROLES.load, consumer=ROLES.math)
    title, texts, tips = shown(pipeline)
    assert title == repr(pipeline) and "a: 4 stages x 16,384 B: 64 KiB" in texts
    assert len([tip for tip in tips if "slot" in tip]) == 8
    assert f"{(232448 - pipeline.nbytes) / 1024:.4g} KiB left" in tips
    assert "3 more stages fit beside it" in texts
    assert any("by its shared memory, an SM holds 1 block of it" in text for text in texts)
    expected = "10 barriers: full after 1 arrival and 32 KiB, empty after 8 arrivals"
    assert expected in texts
    _, texts, _ = shown(tma.TilePipeline(2, x=tma.Tile((8, 32), "f32")))
    assert "empty after one arrival of each consumer warp" in texts[-1]


@pytest.mark.parametrize(
    "pipeline",
    [
        tma.CircularBuffer(3, x=tma.Tile((8, 32), "f32")),
        tma.TilePipeline(2, filled_by="threads", x=A, producer=ROLES.load, consumer=ROLES.math),
        tma.TilePipeline(12, a=A, b=A),  # more than a block may have
        tma.StorePipeline(2, x=tma.Tile((8, 32), "f32")),
        tma.KVPipeline(3, 64, 128, "bf16", producer=ROLES.load, consumer=ROLES.math),
    ],
    ids=lambda pipeline: type(pipeline).__name__,
)
def test_other_pipelines_have_pictures(pipeline):
    title, texts, tips = shown(pipeline)
    assert title == repr(pipeline) and tips
    size = svg.size_of(pipeline.nbytes)
    assert f"{size} of the 227 KiB that a block may have" in " ".join(texts)


@pytest.mark.parametrize(("n", "dtype"), [(8, "f32"), (64, "bf16"), (256, "e4m3"), (24, "f16")])
def test_a_fragments_layout_is_the_one_of_kernels(n, dtype):
    layout = tma.FragmentLayout(n, dtype)
    assert layout.num_elements == n // 2
    seen = set()
    for thread in range(128):
        for i in range(layout.num_elements):
            place = layout.coords(i, thread)
            assert place == fragment_coords(i, thread, layout.dtype.itemsize)
            assert layout.holder(*place) == (thread, i)
            seen.add(place)
    assert len(seen) == 64 * n
    title, texts, tips = shown(layout)
    assert title.startswith(f"FragmentLayout({n}, ") and len(tips) == 16 * min(n, 16)
    thread, i = layout.holder(9, 5)
    assert f"row 9, column 5: element {i} of thread {thread}" in tips
    assert (f"the first 16 of {n} columns" in texts) == (n > 16)


def test_layouts_that_no_fragment_has():
    for n in (0, 4, 12, 264, 8.0):
        with pytest.raises(ValueError, match="f32 has 8 to 256 columns, a multiple of 8"):
            tma.FragmentLayout(n)
    for n in (8, 24, 272):
        with pytest.raises(ValueError, match="e4m3 has 16 to 256 columns, a multiple of 16"):
            tma.FragmentLayout(n, "e4m3")
    with pytest.raises(ValueError, match="FragmentLayout: dtype is 'f64'; a fragment holds one of"):
        tma.FragmentLayout(8, "f64")
    layout = tma.FragmentLayout(16)
    for wrong in ((8, 0), (-1, 0), (0, 128)):
        with pytest.raises(IndexError, match="elements 0 to 7 of the threads 0 to 127"):
            layout.coords(*wrong)
    for wrong in ((64, 0), (0, 16), (-1, 0)):
        with pytest.raises(IndexError, match="outside of 64 x 16"):
            layout.holder(*wrong)


def test_a_trace_shows_the_states_of_stages():
    full, empty = "full[{}] of P".format, "empty[{}] of P".format
    rows = (
        (10, "issue", full(0)),
        (15, "issue", full(1)),
        (20, "full", full(0)),
        (25, "wait", full(0)),
        (30, "store", "y"),
        (40, "empty", empty(0)),
        (50, "store_done", "y"),
        (70, "exit", ""),
    )
    events = [Event(0, t, (0, 1, 0), (0, 0, 0), 0, kind, label, 0) for t, kind, label in rows]
    title, texts, tips = shown(EventTrace(events))
    assert title == "Trace of block (0, 1, 0): 8 events"
    assert {"P", "stage 0", "stage 1", "stores", "loading", "full", "being read", "0"} <= set(texts)
    assert tips == [
        "loading, steps 10 to 20",
        "full, steps 20 to 25",
        "being read, steps 25 to 40",
        "loading, steps 15 to 70",
        "being stored",
    ]
    # Steps have one scale in all rows.
    areas = ET.fromstring(pictures.picture(EventTrace(events))).iter(f"{SVG}rect")
    bars = [float(area.get("width")) for area in areas if area.find(f"{SVG}title") is not None]
    assert np.divide(bars, (10, 5, 15, 55, 20)) == pytest.approx(bars[0] / 10, rel=1e-3)
    _, texts, _ = shown(EventTrace(events[4:5]))
    assert texts == ["1 events, and none of a pipeline's stages"]


def test_a_trace_of_many_pipelines_shows_the_first():
    labels = [f"full[0] of {name}" for name in "ABCDEF"]
    events = [Event(0, t, (0, 0, 0), (0, 0, 0), 0, "issue", n, 0) for t, n in enumerate(labels)]
    _, texts, tips = shown(EventTrace(events))
    assert "and 2 more pipelines" in texts and "D" in texts and "E" not in texts
    assert [tip.split(",")[0] for tip in tips] == ["loading"] * 4


def test_things_without_a_picture_are_refused():
    with pytest.raises(TypeError, match="a int has no picture"):
        pictures.picture(1)


def test_colours_can_be_read_in_light_and_dark_themes():
    """Text on an area has 4.5 times the area's luminance, or less than that part of it."""
    def luminance(colour):
        parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return np.dot(parts, (0.2126, 0.7152, 0.0722))

    for page, text in ((1.0, 0.13), (0.07, 0.88)):  # themes of Jupyter
        for hue in svg.HUES:
            area = [0.4 * c + 0.6 * page for c in to_rgb(hue)]
            low, high = sorted((luminance(area), luminance([text] * 3)))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (hue, page)


def test_jupyter_shows_them_without_being_asked():
    source = """
import IPython
shell = IPython.core.interactiveshell.InteractiveShell.instance()
import numba_tma as tma
form = shell.display_formatter.format
data, _ = form(tma.Tile((8, 32), "f32"))
assert "<svg" in data["text/html"] and data["text/plain"].startswith("Tile("), data
import sys
assert "numba_tma.tools.plot" in sys.modules and "numba" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
