"""The tables of docs/guide/matrix_descriptors.md, written by `make goldens`."""

from __future__ import annotations

import re
from pathlib import Path

from numba_tma import MatrixLayout, Swizzle, Tile
from numba_tma.host.matrix_layout import LEGAL, decode_descriptor

FILE = Path(__file__).parents[1] / "docs" / "guide" / "matrix_descriptors.md"
ROWS, K = 128, 128  # of the example: several slabs with every swizzle

FIELDS = [
    ("start address", 0, 13, "in chunks of 16 B"),
    ("leading dimension offset (LBO)", 16, 29, "in chunks of 16 B"),
    ("stride dimension offset (SBO)", 32, 45, "in chunks of 16 B"),
    ("version", 46, 48, ""),
    ("base offset", 49, 51, ""),
    ("leading dimension mode", 52, 52, ""),
    ("swizzle", 61, 63, ""),
]


def example(major: str, swizzle: Swizzle, instruction: str) -> MatrixLayout:
    """Return how a tile of ROWS x K elements is read."""
    dtype = "tf32" if swizzle is Swizzle.B128_ATOM_32B else "bf16"
    outer, inner = (ROWS, K) if major == "K" else (K, ROWS)
    shape = (outer, inner) if swizzle else (inner // 8, outer, 8)
    return MatrixLayout(Tile(shape, dtype, swizzle), major, instruction)


def examples() -> list[MatrixLayout]:
    """Return one layout for each major-ness and swizzle, wgmma's where it has it."""
    found: dict[tuple[str, Swizzle], MatrixLayout] = {}
    for instruction, majors in LEGAL.items():
        for major, sizes in majors.items():
            for swizzle in dict.fromkeys(s for names in sizes.values() for s in names):
                found.setdefault((major, swizzle), example(major, swizzle, instruction))
    return sorted(found.values(), key=lambda layout: (layout.major, layout.tile.swizzle))


def cells(*values: object) -> str:
    """Return a line of a table."""
    return "| " + " | ".join(map(str, values)) + " |"


def field_table() -> str:
    """Return where the fields lie, and what they are in the descriptors of the two instructions."""
    lines = [cells("field", "bits", "wgmma", "tcgen05.mma"), cells(*["---"] * 4)]
    both = [example("K", Swizzle.B128, i).descriptor(0x400) for i in LEGAL]
    for name, first, last, unit in FIELDS:
        bits = str(first) if first == last else f"{first} to {last}"
        width = last - first + 1
        if unit:
            values = [unit] * 2
        elif name == "swizzle":
            values = [swizzle_codes(instruction, first, width) for instruction in LEGAL]
        else:
            values = [f"`0b{value >> first & ((1 << width) - 1):0{width}b}`" for value in both]
        lines.append(cells(name, bits, *values))
    return "\n".join(lines)


def swizzle_codes(instruction: str, first: int, width: int) -> str:
    """Return the code of each swizzle that an instruction reads."""
    codes = {}
    for layout in examples():
        swizzle = layout.tile.swizzle
        if any(swizzle in names for names in LEGAL[instruction][layout.major].values()):
            there = example(layout.major, swizzle, instruction)
            codes[swizzle] = there.descriptor(0) >> first & ((1 << width) - 1)
    return ", ".join(f"{s.name} {code}" for s, code in sorted(codes.items()))


def value_table() -> str:
    """Return the values for a tile of ROWS x K, by major-ness and swizzle."""
    heads = (
        *("major", "swizzle", "tile", "LBO", "SBO", "k step by k step"),
        *("next rows", "descriptor at 0x400"),
    )
    lines = [cells(*heads), cells(*["---"] * len(heads))]
    for layout in examples():
        descriptor = layout.descriptor(0x400)
        fields = decode_descriptor(descriptor)
        steps = [layout.offset(k_step) for k_step in range(5)]
        lines.append(
            cells(
                layout.major,
                layout.tile.swizzle.name,
                f"`{layout.tile.shape}` {layout.tile.dtype}",
                f"{fields.leading:,}",
                f"{fields.stride:,}",
                " ".join(f"{step:,}" for step in steps) + " …",
                f"{layout.row_unit} at {layout.row_offset:,}",
                f"`{descriptor:#018x}`",
            )
        )
    return "\n".join(lines)


TABLES = {"fields": field_table, "values": value_table}


def text(page: str) -> str:
    """Return the page with its tables as they should be now."""
    for name, table in TABLES.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        places = list(re.finditer(pattern, page, flags=re.S))
        assert len(places) == 1, f"the page has {len(places)} places for the table of {name}"
        page = page[: places[0].end(1)] + table() + "\n" + page[places[0].start(2) :]
    return page


def write() -> bool:
    """Write the tables into the page; return whether it changed."""
    page = FILE.read_text()
    if (new := text(page)) != page:
        FILE.write_text(new)
    return new != page
