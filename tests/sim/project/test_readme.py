"""The README: its code is correct, its commands exist, and the links of all pages resolve."""

import importlib
import pkgutil
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import numba_tma as tma
from numba_tma.__main__ import COMMANDS

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
INDEX = (ROOT / "docs/README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "ptx/*.md", "notebooks/*.md")
    for path in ROOT.glob(pattern)
)


def check_scale(names):
    np.testing.assert_array_equal(names["y"].copy_to_host(), 2 * names["x"].copy_to_host())


#: What a block's names have to be after it ran, by a line of the block.
CHECKS = {"def scale(x, y, factor, n_tiles):": check_scale}


@pytest.mark.parametrize("block", BLOCKS, ids=[f"block{n}" for n in range(len(BLOCKS))])
def test_code_computes_what_it_says(block):
    # Launches stay as large as they are printed, so that this is the code that people copy.
    names = {"__name__": "readme"}
    exec(compile(block, "README.md", "exec"), names)
    checks = [check for line, check in CHECKS.items() if line in block]
    assert checks, "a block of the README that nothing checks: add it to CHECKS"
    for check in checks:
        check(names)


def test_every_check_has_its_block():
    assert all(any(line in block for block in BLOCKS) for line in CHECKS)


# ------------------------------------------------------------------------------ commands


def found(pattern, text=README):
    return sorted(set(re.findall(pattern, text, re.MULTILINE)))


def make_targets():
    return set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


# Not in prose: "make sure" is no command.
COMMAND = r"(?:^ {4}|`)"


def test_the_main_commands_are_shown():
    assert {"demo", "test", "gpu"} <= set(found(COMMAND + r"make ([\w-]+)"))
    assert {"doctor", "bench"} <= set(found(r"python -m numba_tma (\w+)"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_exist(path):
    text = path.read_text()
    targets = set(found(COMMAND + r"make (?:\w+=\S+ )?([\w-]+)", text))
    assert targets <= make_targets()
    subcommands = set(found(r"python -m numba_tma (\w+)", text))
    assert subcommands <= set(COMMANDS)
    for name in subcommands:
        assert callable(importlib.import_module(f"numba_tma.tools.{name}").main)
    groups = found(r"pip install '\.\[([\w,]+)\]'", text)
    extras = {extra for group in groups for extra in group.split(",")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras <= set(project["optional-dependencies"])
    for argument in found(r"python -m pytest [^#\n]*?\b(tests/\w+)", text):
        assert (ROOT / argument).is_dir(), argument
    for module in found(r"python -m (tests[\w.]+)", text):
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file(), module


def test_a_target_and_a_subcommand_that_are_not_there_would_be_seen():
    assert "demo" in make_targets() and "PYTHON" not in make_targets()
    assert found(
        COMMAND + r"make (?:\w+=\S+ )?([\w-]+)", "`make PYTHON=python3.12 tset` make s"
    ) == ["tset"]


def test_the_readme_is_short():
    assert len(README.split()) <= 900


def test_variables_and_names_exist():
    sources = "".join(path.read_text() for path in (ROOT / "numba_tma").rglob("*.py"))
    for variable in found(r"\b(NUMBA_TMA_\w+|NUMBA_ENABLE_\w+)\b"):
        assert variable in sources, variable
    names = set(found(r"\btma\.([A-Za-z_]\w*)", README + INDEX))
    assert {"Tile", "TilePipeline", "tensor_map", "shared_tile"} <= names
    for name in names:
        getattr(tma, name)
    for name in found(r"`(numba_tma\.[\w.]+)`", README + INDEX):
        pkgutil.resolve_name(name)


def test_the_kernels_are_there():
    page = (ROOT / "docs/kernels/README.md").read_text()
    listed = re.findall(r"^\| `(numba_tma\.kernels\.\w+)` \| ([^|]*)", page, re.MULTILINE)
    families = {p.parent.name for p in (ROOT / "numba_tma/kernels").glob("[!_]*/__init__.py")}
    assert {module.split(".")[-1] for module, _ in listed} == families
    for module, functions in listed:
        family = importlib.import_module(module)
        assert set(re.findall(r"`(\w+)`", functions)) == set(family.__all__)
        assert all(callable(getattr(family, name)) for name in family.__all__)


def test_every_page_is_in_the_index():
    pages = {p.relative_to(ROOT / "docs") for p in (ROOT / "docs").rglob("*.md")}
    linked = {Path(link) for link in re.findall(r"\]\(([^)#\s]+\.md)", INDEX)}
    assert pages - {Path("README.md")} <= linked


# --------------------------------------------------------------------------------- links


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_to_files(path):
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", prose)
    missing = [link for link in links if not (path.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_backticks_exist(path):
    """Files and folders that prose names by their path; the changelog also names old ones."""
    if path.name == "CHANGELOG.md":
        return
    named = re.findall(r"`((?:numba_tma|tests|docs|ptx|notebooks)/[\w./]+)`", path.read_text())
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing
