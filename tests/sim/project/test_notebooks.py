"""The notebooks give the outputs that are committed with them, and their pictures are right.

``python -m tests.sim.project.test_notebooks`` executes the notebooks and writes their outputs anew.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import nbformat
import numpy as np
import pytest
from matplotlib import pyplot
from nbclient import NotebookClient
from numba import cuda

import numba_tma as tma
from numba_tma import simulator
from numba_tma.simulator import Event, EventTrace
from numba_tma.tools import plot

ROOT = Path(__file__).parents[3]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CELL_SECONDS = 120
ADDRESS = re.compile("0x[0-9a-f]{6,}")

matplotlib.use("agg")


def executed(path, **variables):
    """Execute a notebook in a fresh kernel that sees no GPU, where warnings are errors."""
    notebook = nbformat.read(path, as_version=4)
    strict, relaxed = (
        nbformat.v4.new_code_cell(f"import warnings\nwarnings.{call}")
        # The kernel itself warns when it shuts down.
        for call in ("simplefilter('error')", "resetwarnings()")
    )
    notebook.cells = [strict, *notebook.cells, relaxed]
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute(env=environment() | variables)
    del notebook.cells[0], notebook.cells[-1]
    notebook.metadata.language_info = {"name": "python"}  # not this machine's version of it
    for number, cell in enumerate(code_cells(notebook), start=1):
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
            if "text/html" in output.get("data", {}):  # a picture; its text is not this process's
                output.data["text/plain"] = ADDRESS.sub("0x...", output.data["text/plain"])
    return notebook


def environment():
    """Return this process's variables without what decides where and in which order kernels run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths)}


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell):
    """Return what a cell prints and displays; of matplotlib's pictures only that there is one."""
    texts, pictures = "", []
    for output in cell.outputs:
        if output.output_type == "stream":
            texts += output.text if output.name == "stdout" else ""  # stderr: logging of libraries
        elif output.output_type == "error":
            texts += f"{output.ename}: {output.evalue}"
        elif "image/png" in output.data:
            pictures.append("picture")
        else:
            texts += output.data["text/plain"]
            pictures += [output.data["text/html"]] if "text/html" in output.data else []
    return texts, pictures


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_committed_outputs_are_what_the_notebook_gives(path):
    committed = code_cells(nbformat.read(path, as_version=4))
    for was, now in zip(committed, code_cells(executed(path)), strict=True):
        assert shown(now) == shown(was), f"cell {now.id}; {__doc__.splitlines()[2]}"


#: Cells that show what the compiler refuses. In the simulator a run finds it.
REFUSED = {"00_first_tile": ["mismatch"], "03_scopes_and_roles": ["forgotten"]}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_kernels_compile_for_a_gpu(path):
    cells = code_cells(executed(path, NUMBA_TMA_SIM_COMPILES="1"))
    refused = [cell.id for cell in cells if "does not compile for sm_90a" in shown(cell)[0]]
    assert refused == REFUSED.get(path.stem, [])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_is_small_whole_and_the_same_on_every_machine(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [c.id for c in cells for out in c.outputs if out.output_type == "error"]
    assert not [c.id for c in cells if ADDRESS.search(str(shown(c)))], "addresses"
    assert not [c.id for c in cells if str(ROOT) in str(shown(c))], "paths"
    assert notebook.metadata.language_info == {"name": "python"}
    assert path.stat().st_size < 200_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_lesson_has_a_title_pictures_and_an_exercise_whose_solution_is_checked(path):
    cells = nbformat.read(path, as_version=4).cells
    ids = [cell.id for cell in cells]
    assert cells[0].id == "title" and cells[0].source.startswith("# ")
    assert [cell.id for cell in cells if cell.cell_type == "code"][0] == "where"
    assert any(shown(cell)[1] for cell in cells if cell.cell_type == "code")
    assert cells[ids.index("exercise")].source.startswith("## Exercise\n")
    (solution,) = (cell for cell in cells if cell.id == "solution")
    assert ids.index("solution") > ids.index("exercise") and "assert " in solution.source


def test_the_list_of_the_notebooks_is_complete():
    text = (ROOT / "notebooks" / "README.md").read_text()
    listed = re.findall(r"^\| \[`(\w+\.ipynb)`\]\(\1\) \|", text, re.MULTILINE)
    assert listed == [path.name for path in NOTEBOOKS]


def test_there_is_a_first_notebook_with_pictures():
    first = nbformat.read(ROOT / "notebooks" / "00_first_tile.ipynb", as_version=4)
    assert sum(len(shown(cell)[1]) for cell in code_cells(first)) == 2


# ---------------------------------------------------------------------------- pictures


@pytest.fixture(autouse=True)
def no_figure_is_left():
    yield
    pyplot.close("all")


def drawn(ax):
    """Return the texts in a picture, by (line, group of banks) or (row, time)."""
    return {(t.get_position()[1] - 0.5, t.get_position()[0] - 0.5): t.get_text() for t in ax.texts}


def test_a_swizzle_permutes_the_chunks_of_each_row():
    plain = drawn(plot.swizzle(tma.Tile((8, 32), "f32")))
    assert plain == {(r, g): str(g) for r in range(8) for g in range(8)}
    permuted = drawn(plot.swizzle(tma.Tile((8, 32), "f32", tma.Swizzle.B128)))
    assert permuted == {(r, g): str(g ^ r) for r in range(8) for g in range(8)}


def test_a_line_of_several_rows_names_them():
    ax = plot.swizzle(tma.Tile((8, 16), "f32", tma.Swizzle.B64))
    assert drawn(ax) == {
        (line, 4 * half + (chunk ^ line)): f"{2 * line + half}:{chunk}"
        for line in range(4)
        for half in range(2)
        for chunk in range(4)
    }
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0-1", "2-3", "4-5", "6-7"]


def test_padding_stays_blank():
    ax = plot.swizzle(tma.Tile((2, 4, 16), "f32", tma.Swizzle.B128))
    assert drawn(ax) == {(r, c ^ r): str(c) for r in range(8) for c in range(4)}


def test_only_the_first_lines_of_a_large_tile_are_drawn():
    ax = plot.swizzle(tma.Tile((64, 64), "f32"))
    assert len(ax.texts) == 16 * 8
    assert "first 16 of 128 lines" in ax.get_title()


def test_a_row_that_is_no_whole_chunks_cannot_be_drawn():
    message = re.escape(
        "swizzle(): Tile((8, 6), f32, NONE) has rows of 24 B, which cannot be drawn in chunks of "
        "16 B: use a multiple of 4 along the innermost axis"
    )
    with pytest.raises(ValueError, match=message):
        plot.swizzle(tma.Tile((8, 6), "f32"))


def test_a_picture_is_drawn_where_it_is_told():
    left, right = pyplot.subplots(1, 2)[1]
    assert plot.swizzle(tma.Tile((8, 32), "f32"), right) is right
    assert right.texts and not left.texts


def events(*rows):
    """Return a trace of (time, kind, label) in one block."""
    where = (0, 0, 0), (0, 0, 0), 0
    return EventTrace([Event(0, time, *where, kind, label, 0) for time, kind, label in rows])


def bars(ax):
    """Return (row, colour, start, end) of each bar; a legend's have no length."""
    return sorted(
        (bar.get_y() + bar.get_height() / 2, matplotlib.colors.to_hex(bar.get_facecolor()), x, end)
        for bar in ax.patches
        if (end := (x := bar.get_x()) + bar.get_width()) > x
    )


def test_a_timeline_has_a_bar_for_each_state_of_a_stage():
    full, empty = "full[{}] of P".format, "empty[{}] of P".format
    trace = events(
        (10, "issue", full(0)),
        (11, "issue", full(0)),  # a second tile of the stage
        (15, "issue", full(1)),
        (20, "full", full(0)),
        (25, "wait", full(0)),
        (26, "wait", full(0)),  # a second warp
        (30, "store", "y"),
        (40, "empty", empty(0)),
        (45, "full", full(1)),
        (50, "store_done", "y"),
        (60, "issue", full(0)),
        (70, "exit", ""),
    )
    ax = plot.timeline(trace)
    loading, being_full, read = (colour for _, colour in plot.STATES.values())
    assert bars(ax) == sorted(
        [
            (0, loading, 10, 20),
            (0, being_full, 20, 25),
            (0, read, 25, 40),
            (0, loading, 60, 70),
            (1, loading, 15, 45),
            (1, being_full, 45, 70),
            (2, plot.STORING[1], 30, 50),
        ]
    )
    assert [t.get_text() for t in ax.texts] == ["0"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["stage 0", "stage 1", "stores"]
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["loading", "full", "being read", "being stored"]


TILE = tma.Tile((4, 16), "f32")
PIPE = tma.TilePipeline(3, x=TILE)


@cuda.jit
def total(x, out, n_tiles):
    pipe = PIPE.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(0, n_tiles):
            x.load(stage.x, (tile * 4, 0), stage.barrier)
    else:
        for _, stage in pipe.consume(0, n_tiles):
            for row in range(4):
                if cuda.threadIdx.x < 16:
                    out[cuda.threadIdx.x] += stage.x[row, cuda.threadIdx.x]


def test_a_recorded_timeline_reads_every_tile_once_and_in_its_stage():
    x, out = np.ones((28, 16), np.float32), np.zeros(16, np.float32)
    with simulator.record() as trace:
        total[1, 64](tma.tensor_map(x, TILE), out, 7)
    assert (out == 28).all()
    ax = plot.timeline(trace)
    numbers = sorted((int(t.get_text()), t.get_position()[1]) for t in ax.texts)
    assert numbers == [(tile, tile % 3) for tile in range(7)]
    for row in range(3):
        spans = [(start, end) for y, _, start, end in bars(ax) if y == row]
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:]))
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["loading", "full", "being read"]  # nothing was stored


def test_a_timeline_needs_a_pipeline():
    with pytest.raises(ValueError, match="the trace has no pipeline stage: launch a kernel"):
        plot.timeline(EventTrace())


def test_matplotlib_is_needed_for_a_picture_only():
    code = "import sys, numba_tma.tools.plot; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True, timeout=100)


def test_what_to_install_for_a_picture(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plot.swizzle(tma.Tile((8, 32), "f32"))


if __name__ == "__main__":
    for notebook_path in NOTEBOOKS:
        nbformat.write(executed(notebook_path), notebook_path)
        print(f"wrote {notebook_path.name}")
