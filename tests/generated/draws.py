"""What programs are drawn from: families, element types, tiles and options."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.generated.program import Program

DTYPES = {"f32": "float32", "f16": "float16", "i32": "int32", "u8": "uint8", "f64": "float64"}
BYTES = {"f32": 4, "f16": 2, "i32": 4, "u8": 1, "f64": 8}

FAMILIES: list[tuple[int, Callable[[Draw], Program]]] = []


def family(weight: int) -> Callable[[Callable[[Draw], Program]], Callable[[Draw], Program]]:
    """Enter a family with the number of its tickets in the draw."""

    def enter(make: Callable[[Draw], Program]) -> Callable[[Draw], Program]:
        FAMILIES.append((weight, make))
        return make

    return enter


def draw(rng: Draw) -> Program:
    """Draw a program."""
    weights, makers = zip(*FAMILIES)
    return rng.choices(makers, weights)[0](rng)


def tile(rng: Draw, dtypes: str = "f32 f16 i32 u8 f64") -> tuple[str, str, int, int]:
    """Return a tile as source, its element type, rows and columns."""
    if rng.block == 0:
        return 'tma.Tile((4, 32), "f32", tma.Swizzle.NONE)', "f32", 4, 32
    shared = Random(f"{rng.block} {dtypes}")
    dtype = shared.choice(dtypes.split())
    swizzles = {"NONE": 64, "B32": 32, "B64": 64, "B128": 128}
    name = shared.choice(["NONE", "NONE", "B128", *swizzles])
    rows, columns = shared.choice([2, 4, 8]), swizzles[name] // BYTES[dtype]
    if name == "NONE":
        columns = shared.choice([16, 32])
    return f'tma.Tile(({rows}, {columns}), "{dtype}", tma.Swizzle.{name})', dtype, rows, columns


class Draw(Random):
    """The draws of one program. Programs of one block share objects, which compile once."""

    def __init__(self, number: int, block: int) -> None:
        super().__init__(number)
        self.block = block


def few(rng: Draw, options: list[Any]) -> list[Any]:
    """Return the one option of an object that the programs of a block share."""
    return [Random(f"{rng.block} {options}").choice(options) if rng.block else options[0]]


def array(name: str, rows: int, columns: int, dtype: str) -> str:
    """Return the statement that makes an array of small numbers."""
    return (
        f"{name} = (np.arange({rows * columns}) % 113)"
        f".reshape({rows}, {columns}).astype(np.{DTYPES[dtype]})"
    )


def typed(dtype: str) -> str:
    return f"types.{DTYPES[dtype]}[:, ::1]"
