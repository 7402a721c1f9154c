"""Architectures as data: what each GPU has, and the targets that a kernel can be compiled for.

A target is a compute capability in digits, with a suffix: ``"100"`` is the plain one, whose code
runs on all later GPUs; ``"100f"`` runs on the GPUs of its family; ``"100a"`` on compute capability
10.0 alone. Instructions name the targets that have them by a `Targets`: a set of targets, each with
the first version of the PTX ISA that has the instruction there. Everything that depends on the GPU
asks this module; ``docs/development/add-an-architecture.md`` says how it grows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

#: A version of the PTX ISA: major, minor.
Version: TypeAlias = tuple[int, int]

#: Shared memory that ptxas takes as static for targets without "a", in bytes.
PLAIN_SHARED = 48 << 10


class Architecture(NamedTuple):
    """What GPUs of one compute capability have."""

    number: int  #: compute capability in digits: 90 is 9.0
    plain: Version  #: first PTX ISA of the plain target
    a: Version | None = None  #: first PTX ISA of the architecture's own target
    f: Version | None = None  #: first PTX ISA of the family's target
    family: tuple[int, ...] = ()  #: who runs code of target f
    shared: int = PLAIN_SHARED  #: shared memory of a block, in bytes
    cluster: int = 0  #: blocks of the largest cluster; 0 without clusters
    tensor_cores: str = "mma"  #: the asynchronous products, "wgmma" or "tcgen05"; "mma": none
    loads_to_cta: bool = False  #: unicast copies name ``.shared::cta``, not ``.shared::cluster``

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability: major, minor."""
        return divmod(self.number, 10)

    @property
    def targets(self) -> dict[str, Version]:
        """The targets of the architecture, each with its first PTX ISA."""
        named = {"": self.plain, "a": self.a, "f": self.f}
        return {f"{self.number}{suffix}": isa for suffix, isa in named.items() if isa is not None}


_KIB = 1 << 10

#: Every architecture, by its number. A unicast load to ``.shared::cluster`` is a call of a driver
#: routine on 12x, and the same machine code as one to ``.shared::cta`` on all others.
ARCHITECTURES = {
    a.number: a
    for a in (
        Architecture(80, (7, 0)),
        Architecture(89, (7, 8)),
        Architecture(
            90, (7, 8), a=(8, 0), shared=227 * _KIB, cluster=16, tensor_cores="wgmma",
        ),
        Architecture(
            100, (8, 6), a=(8, 6), f=(8, 8), family=(100, 103, 107), shared=227 * _KIB,
            cluster=16, tensor_cores="tcgen05",
        ),
        Architecture(
            103, (8, 8), a=(8, 8), f=(8, 8), family=(103, 107), shared=227 * _KIB,
            cluster=16, tensor_cores="tcgen05",
        ),
        Architecture(
            107, (9, 4), a=(9, 4), f=(9, 4), family=(107,), shared=227 * _KIB,
            cluster=16, tensor_cores="tcgen05",
        ),
        Architecture(
            110, (9, 0), a=(9, 0), f=(9, 0), family=(110,), shared=227 * _KIB,
            cluster=8, tensor_cores="tcgen05",
        ),
        Architecture(
            120, (8, 7), a=(8, 7), f=(8, 8), family=(120, 121), shared=99 * _KIB,
            cluster=8, loads_to_cta=True,
        ),
        Architecture(
            121, (8, 8), a=(8, 8), f=(8, 8), family=(121,), shared=99 * _KIB,
            cluster=8, loads_to_cta=True,
        ),
    )
}  # fmt: skip

#: Every target, with its first PTX ISA.
TARGETS: dict[str, Version] = {
    target: isa for a in ARCHITECTURES.values() for target, isa in a.targets.items()
}


# ------------------------------------------------------------------------------ one target


def parts(target: str) -> tuple[int, str]:
    """Return the number and the suffix of a target: 100 and "f" of ``"100f"``."""
    match = re.fullmatch(r"(\d+)([af]?)", target)
    if match is None:
        raise ValueError(f'{target!r} is no target: write "90a", "100" or "100f"')
    return int(match[1]), match[2]


def target_of(capability: tuple[int, int] | tuple[int, int, str]) -> str:
    """Return the target of a compute capability, (10, 0, "a") or (9, 0)."""
    return f"{capability[0]}{capability[1]}{''.join(map(str, capability[2:]))}"


def capability_of(target: str) -> tuple[int, int, str]:
    """Return a target as `numba_tma.testing.compile_ptx` takes it: (10, 0, "a")."""
    number, suffix = parts(target)
    return *divmod(number, 10), suffix


def own_target(number: int) -> str:
    """Return the target of a GPU's own code, which has all its instructions: 90a of 90."""
    return f"{number}a" if architecture_of(str(number)).a else str(number)


def architecture_of(target: str) -> Architecture:
    """Return the architecture of a target; one that is not in the table has what all have."""
    number, _ = parts(target)
    known = ARCHITECTURES.get(number)
    return known or Architecture(number, (9, 0), cluster=8 if number > 90 else 0)


def runs_on(target: str, number: int) -> bool:
    """Return whether code of a target runs on GPUs of a compute capability, 103 for 10.3."""
    own, suffix = parts(target)
    if suffix == "f":
        return number in architecture_of(target).family
    return number >= own if not suffix else number == own


def loads_on(target: str, number: int) -> bool:
    """Return whether a cubin of a target loads on GPUs of a compute capability, 103 for 10.3.

    PTX of a plain target runs on all later GPUs; a cubin's major version must be the GPU's.
    """
    own, suffix = parts(target)
    return runs_on(target, number) and (suffix == "f" or own // 10 == number // 10)


def static_shared(target: str) -> int:
    """Return the static shared memory of a block that ptxas of CUDA 13 takes, in bytes."""
    return architecture_of(target).shared if target.endswith("a") else PLAIN_SHARED


# ------------------------------------------------------------------------ sets of targets


class Targets(Mapping[str, Version]):
    """The targets that have an instruction, each with the first PTX ISA that has it there.

    `name` is how documentation and markers name the set. `since` is the number from which on all
    targets have it, those of architectures outside the table included.
    """

    def __init__(self, name: str, isa_of: Mapping[str, Version], since: int | None = None) -> None:
        self.name, self.since = name, since
        self._isa_of = dict(isa_of)

    def __getitem__(self, target: str) -> Version:
        return self._isa_of[target]

    def __iter__(self) -> Iterator[str]:
        return iter(self._isa_of)

    def __len__(self) -> int:
        return len(self._isa_of)

    def __hash__(self) -> int:
        return hash(frozenset(self._isa_of.items()))

    def allow(self, target: str) -> bool:
        """Return whether code for `target` may use the instruction."""
        return target in self or (self.since is not None and parts(target)[0] >= self.since)

    def on(self, capability: tuple[int, ...]) -> bool:
        """Return whether GPUs of a compute capability have it, in code of their own target."""
        number = f"{capability[0]}{capability[1]}"
        return any(self.allow(f"{number}{suffix}") for suffix in ("", "a"))

    def without(self, *targets: str, name: str) -> Targets:
        """Return the set less some targets."""
        return Targets(name, {t: isa for t, isa in self.items() if t not in targets})

    def __and__(self, other: Targets) -> Targets:
        """Return the targets of both, each with the later version."""
        both = {t: max(isa, other[t]) for t, isa in self.items() if t in other}
        for one in (self, other):
            if both == one:
                return one
        return Targets("+".join(both), both)

    def __str__(self) -> str:
        if self.since is not None:
            return f"sm_{self.since} and newer"
        *most, last = self
        return f"sm_{', '.join(most)} or {last}" if most else f"sm_{last}"

    def __repr__(self) -> str:
        return f"Targets({self.name})"


def _of(name: str, suffixes: str, *numbers: int) -> Targets:
    """Return the targets of some architectures with some of the suffixes "a" and "f"."""
    kept = (f"{number}{suffix}" for number in numbers for suffix in suffixes)
    return Targets(name, {t: TARGETS[t] for t in kept})


def only(*targets: str) -> Targets:
    """Return a set of targets without a name, such as 90a alone."""
    return Targets("+".join(targets), {t: TARGETS[t] for t in targets})


@functools.cache
def at_least(number: int) -> Targets:
    """Return every target of an architecture and of all newer ones."""
    known = {t: isa for t, isa in TARGETS.items() if parts(t)[0] >= number}
    return Targets(str(number), known, since=number)


def as_targets(sm: int | str | Targets) -> Targets:
    """Return what ``sm=`` of a row stands for: 90 and newer, "90a" alone, or a set."""
    if isinstance(sm, Targets):
        return sm
    return at_least(sm) if isinstance(sm, int) else only(sm)


#: Every target of Hopper and later: the Tensor Memory Accelerator, mbarriers, clusters.
TMA = at_least(90)
#: Products of a warpgroup.
WGMMA = only("90a")
#: Every target of Blackwell, plain ones too, and of later architectures.
BLACKWELL = at_least(100)
#: Tensor memory and its products, CTA pairs in copies, scatter4, im2col::w::128.
TCGEN05 = _of("TCGEN05", "af", 100, 103, 107, 110)
#: The same without families: tcgen05.shift, ``.scale_vec`` names, sparse 4-bit block-scaled kinds.
TCGEN05_A = _of("TCGEN05_A", "a", 100, 103, 107, 110)
#: tcgen05.mma of 8-bit integers.
TCGEN05_I8 = _of("TCGEN05_I8", "a", 100, 110)
#: tcgen05.ld.red.
TCGEN05_LD_RED = _of("TCGEN05_LD_RED", "af", 103, 107, 110)
#: scale-d of tcgen05.mma; redux.sync of f32.
TCGEN05_SCALE_D = _of("TCGEN05_SCALE_D", "af", 100, 103, 107)
#: K of 96 in 4-bit block-scaled products; the 96-byte swizzle of tensor maps.
TCGEN05_K96 = _of("TCGEN05_K96", "a", 103, 107)
#: What Rubin added to tcgen05.
RUBIN = _of("RUBIN", "af", 107)
#: 8-bit ldmatrix and stmatrix, conversions to 4 and 6 bits, launch control for a cluster.
FAMILY = _of("FAMILY", "af", 100, 103, 107, 110, 120, 121)
#: Hopper's 90a and all of `FAMILY`: tensormap.replace, setmaxnreg.
ACCELERATED = Targets("ACCELERATED", {"90a": TARGETS["90a"], **FAMILY})
#: mma.sync with ``kind::``, block-scaled or of any two 8-, 6- and 4-bit types.
MMA_SCALED_120 = _of("MMA_SCALED_120", "af", 120, 121)
#: The sparse form of mma.sync with ``kind::mxf4nvf4``.
MMA_SPARSE_NVF4_120 = _of("MMA_SPARSE_NVF4_120", "a", 120, 121)
#: cvt.rs to four e4m3.
CVT_RS = _of("CVT_RS", "a", 100, 103, 107)
#: multimem.ld_reduce of 8-bit floats.
MULTIMEM_FP8 = FAMILY.without("120f", "121f", name="MULTIMEM_FP8")

#: The sets that have a name, for documentation and for the markers of ``ptx/``.
NAMED: dict[str, Targets] = {
    one.name: one
    for one in (
        TCGEN05, TCGEN05_A, TCGEN05_I8, TCGEN05_LD_RED, TCGEN05_SCALE_D, TCGEN05_K96, RUBIN,
        FAMILY, ACCELERATED, MMA_SCALED_120, MMA_SPARSE_NVF4_120, CVT_RS, MULTIMEM_FP8,
    )
}  # fmt: skip


# ------------------------------------------------------------------------------------ errors


def refusal(what: str, having: Targets, target: str) -> str:
    """Return the error of a compile for a target that lacks `what`; empty if it has it."""
    if having.allow(target):
        return ""
    number, suffix = parts(target)
    major, minor = divmod(number, 10)
    if having.since is not None:
        name, why = f"compute capability {having.since // 10}.{having.since % 10}", ""
        if 90 <= having.since and number < 90:
            name = "compute capability 9.0 (Hopper)" if having.since == 90 else name
            why = ", which has no Tensor Memory Accelerator"
        return f"{what} needs {name} or newer; this kernel is compiled for {major}.{minor}{why}"
    siblings = [t for t in having if parts(t)[0] == number]
    if siblings:
        repair = f"compile it for {_either(siblings)}"
    else:
        repair = f"no GPU of compute capability {major}.{minor} has it"
    return f"{what} needs {having}; this kernel is compiled for sm_{number}{suffix}: {repair}"


#: How kernels multiply on GPUs with each kind of tensor cores.
_PRODUCTS = {
    "wgmma": "use wgmma, whose accumulators are fragments in registers",
    "tcgen05": "use tcgen05_mma, whose accumulators are in tensor memory",
    "mma": "use mma.sync (tma.ptx.mma_m16n8k16 and its kin), whose accumulators are in registers",
}


def product_refusal(what: str, having: Targets, target: str) -> str:
    """Return `refusal`, with the products that the target's GPUs have if they never have `what`."""
    error = refusal(what, having, target)
    number, _ = parts(target)
    if not error or any(parts(t)[0] == number for t in having):
        return error
    return f"{error}; there {_PRODUCTS[architecture_of(target).tensor_cores]}"


def _either(targets: Iterable[str]) -> str:
    return " or ".join(f"sm_{t}" for t in targets)
