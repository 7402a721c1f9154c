"""The table of mutants is complete; host and compile-time errors; the page is current."""

import builtins
from types import SimpleNamespace
from unittest import mock

import pytest
from numba import from_dtype, types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma import pipeline, simulator
from numba_tma.backend.numba_cuda import guards
from numba_tma.host import debug
from numba_tma.tools.testing import compile_ptx
from tests import gallery_page
from tests.mutants.mutants import IMPOSSIBLE, MUTANTS, PROGRAMS, TABLE
from tests.mutants.table import CATCHERS, MUTATIONS, broken
from tests.tiers import every


def caught_by(catcher):
    return [mutant for mutant in MUTANTS if catcher in mutant.caught]


# ------------------------------------------------------------------------------- no hole


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.pipeline)
def test_every_pipeline_is_broken_in_every_way(program):
    for mutation in MUTATIONS:
        rows = [
            row for row in TABLE if (row.pipeline, row.mutation) == (program.pipeline, mutation)
        ]
        assert rows, f"nobody has broken {program.pipeline} by: {mutation}"
        assert len({type(row) for row in rows}) == 1, f"{mutation}: possible and impossible"


def test_every_pipeline_of_the_library_is_there():
    started = {n for n in pipeline.__all__ if hasattr(getattr(pipeline, n), "start")}
    assert started, "no pipeline is found"
    missing = {n for n in started if not any(p.pipeline.startswith(n) for p in PROGRAMS)}
    assert not missing


def test_every_mutant_is_caught_by_somebody():
    for mutant in MUTANTS:
        assert mutant.caught, mutant
        assert mutant.mutation in MUTATIONS and set(mutant.caught) <= set(CATCHERS)
        # What hangs a GPU hangs the simulator, which says so.
        assert "debug" not in mutant.caught or "simulator" in mutant.caught, mutant
        # A library that is broken here cannot be compiled beside the right one.
        assert bool(mutant.edits) != bool(mutant.patched), mutant
        assert not mutant.patched or set(mutant.caught) == {"simulator"}, mutant
    assert all(row.reason.endswith(".") and row.mutation in MUTATIONS for row in IMPOSSIBLE)


def test_the_errors_exist_and_say_something():
    places = {"host": builtins, "launch": builtins, "simulator": simulator, "debug": debug}
    for mutant in MUTANTS:
        for catcher, (names, text) in mutant.caught.items():
            assert text, mutant
            for name in names.split():
                assert name == "TypingError" or hasattr(places[catcher], name), name


def test_a_line_to_be_broken_stands_there_once():
    with pytest.raises(ValueError, match="'b' stands 0 times"):
        broken("a\n", (("b", "c"),))
    with pytest.raises(ValueError, match="'a' stands 2 times"):
        broken("a\n  a\n", (("a", "c"),))
    assert broken("a\n    b\nc\n", (("b", "d\n    e"), ("c", ""))) == "a\n    d\n        e\n"


# -------------------------------------------------------------------------------- caught


@pytest.mark.parametrize("mutant", caught_by("host"), ids=repr)
def test_refused_when_its_objects_are_made(mutant):
    name, text = mutant.caught["host"]
    with pytest.raises(getattr(builtins, name)) as raised:
        mutant.build()
    assert text in str(raised.value)


def signature(program):
    tiles = (*(program.inputs), program.output)
    x, y = (from_dtype(array.dtype)[:, ::1] for array in program.arrays())
    arrays = (*(x for _ in program.inputs), y)
    maps = [tma.TensorMapType(2, t) if t else array for t, array in zip(tiles, arrays)]
    return (*maps, types.int64)


def compiled(mutant):
    """Return what is left of a compiled kernel, with the launch that the library gives it."""
    kernel, grid, block = mutant.build()
    cc = (9, 0, "a") if mutant.program.on_hopper else (10, 0, "a")
    ptx = compile_ptx(kernel, signature(mutant.program), cc=cc)
    library = SimpleNamespace(get_asm_str=lambda: ptx)
    result = SimpleNamespace(argument_types=(), _codelibrary=library, launch=mock.Mock())
    guards._adapt_launches(result)
    return result, (grid, 1, 1), (block, 1, 1)


@pytest.mark.parametrize("mutant", every(2, caught_by("compile")), ids=repr)
def test_refused_when_it_is_compiled(mutant):
    with pytest.raises((TypingError, CudaTypingError)) as raised:
        compiled(mutant)
    assert mutant.caught["compile"][1] in " ".join(str(raised.value).split())


@pytest.mark.parametrize("mutant", caught_by("launch"), ids=repr)
def test_refused_when_it_is_launched(mutant):
    kernel, grid, block = compiled(mutant)
    name, text = mutant.caught["launch"]
    with pytest.raises(getattr(builtins, name)) as raised:
        kernel.launch((), grid, block, 0)
    assert text in str(raised.value)


# ---------------------------------------------------------------------------------- page


def test_the_gallery_is_current():
    assert gallery_page.FILE.read_text() == gallery_page.page(), "run `make goldens`"


def test_every_entry_of_the_gallery_can_be_reached():
    page = gallery_page.page()
    titles = [line.removeprefix("### ") for line in page.splitlines() if line.startswith("### ")]
    assert len(titles) == len(set(titles)) > 20
    for title in titles:
        assert f"[{title}]({gallery_page.anchor(title)})" in page
