"""Kernels with scopes that record their events, each beside the equivalent calls.

A scope with number 7 writes 7 when it is entered and -7 when it is closed. Every thread writes to a
row of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba import cuda

import numba_tma as tma
from numba_tma.backend.interface import device_class, i64, u32
from numba_tma.ptx import tid_x

THREADS, EVENTS = 2, 40


@device_class(mutable=True)
@dataclass
class Log:
    row: Any
    used: u32 = 0

    def write(self, event: Any) -> None:
        self.row[self.used] = event
        self.used += 1


@device_class()
@dataclass
class Scope:
    log: Log
    number: i64

    def enters(self) -> bool:
        self.log.write(self.number)
        return True

    def close(self) -> None:
        self.log.write(-self.number)

    def inner(self) -> Scope:
        return Scope(self.log, self.number * 10)


@device_class()
@dataclass
class Elected:
    """A scope of which thread 0 executes the body, as a producer's warp elects one."""

    log: Log
    number: i64

    def enters(self) -> bool:
        return tid_x() == 0

    def close(self) -> None:
        self.log.write(-self.number)


#: (name, with scopes, written out, what thread 0 writes for n = 3, what thread 1 writes)
CASES: list[tuple[str, Any, Any, list[int], list[int]]] = []


def case(written_out: Any, first: list[int], second: list[int] | None = None) -> Any:
    def add(scoped: Any) -> Any:
        expected = first if second is None else second
        CASES.append((scoped.__name__, scoped, written_out, first, expected))
        return scoped

    return add


# --------------------------------------------------------------------------- plain forms


def named_explicit(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    s = Scope(log, 1)
    s.enters()
    log.write(s.number + 100)
    s.close()
    log.write(99)


@case(named_explicit, [1, 101, -1, 99])
@tma.scopes
def named(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    with Scope(log, 1) as s:
        log.write(s.number + 100)
    log.write(99)


def several_explicit(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    a = Scope(log, 1)
    a.enters()
    b = a.inner()
    b.enters()
    c = Scope(log, 3)
    c.enters()
    log.write(b.number)
    c.close()
    b.close()
    a.close()


@case(several_explicit, [1, 10, 3, 10, -3, -10, -1])
@tma.scopes
def several(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    with Scope(log, 1) as a, a.inner() as b, Scope(log, 3):
        log.write(b.number)


def rebound_explicit(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    a = Scope(log, 1)
    a.enters()
    b = Scope(log, 2)
    log.write(b.number)
    a.close()


@case(rebound_explicit, [1, 2, -1])
@tma.scopes
def rebound(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    with Scope(log, 1) as a:
        a = Scope(log, 2)
        log.write(a.number)


def elected_explicit(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    s = Elected(log, 1)
    if s.enters():
        for k in range(n):
            t = Scope(log, 2)
            t.enters()
            log.write(k + 100)
            t.close()
    s.close()


@case(elected_explicit, [2, 100, -2, 2, 101, -2, 2, 102, -2, -1], [-1])
@tma.scopes
def elected(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    with Elected(log, 1):
        for k in range(n):
            with Scope(log, 2):
                log.write(k + 100)


# --------------------------------------------------------------------- leaving them early


def breaks_explicit(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    a = Scope(log, 1)
    a.enters()
    for k in range(10):
        b = Scope(log, 2)
        b.enters()
        c = Scope(log, 3)
        c.enters()
        if k == n - 2:
            c.close()
            b.close()
            break
        log.write(100 + k)
        c.close()
        b.close()
    log.write(50)
    a.close()


@case(breaks_explicit, [1, 2, 3, 100, -3, -2, 2, 3, -3, -2, 50, -1])
@tma.scopes
def breaks(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    with Scope(log, 1):
        for k in range(10):
            with Scope(log, 2), Scope(log, 3):
                if k == n - 2:
                    break
                log.write(100 + k)
        log.write(50)


def breaks_within_explicit(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    a = Scope(log, 1)
    a.enters()
    for k in range(10):
        if k == n:
            break
        if k == 1:
            continue
        log.write(100 + k)
    a.close()


@case(breaks_within_explicit, [1, 100, 102, -1])
@tma.scopes
def breaks_within(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    with Scope(log, 1):
        for k in range(10):
            if k == n:
                break
            if k == 1:
                continue
            log.write(100 + k)


def continues_explicit(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    k = 0
    while k < n:
        k += 1
        a = Scope(log, k)
        a.enters()
        if k != 2:
            a.close()
            continue
        log.write(100 + k)
        a.close()


@case(continues_explicit, [1, -1, 2, 102, -2, 3, -3])
@tma.scopes
def continues(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    k = 0
    while k < n:
        k += 1
        with Scope(log, k):
            if k != 2:
                continue
            log.write(100 + k)


def loop_else_explicit(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    for k in range(2):
        a = Scope(log, 1)
        a.enters()
        for j in range(n - k):
            b = Scope(log, 2)
            b.enters()
            if j == 2:
                b.close()
                break
            b.close()
        else:
            log.write(60)
            a.close()
            continue
        log.write(50)
        a.close()


@case(loop_else_explicit, [1, 2, -2, 2, -2, 2, -2, 50, -1, 1, 2, -2, 2, -2, 60, -1])
@tma.scopes
def loop_else(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    for k in range(2):
        with Scope(log, 1):
            for j in range(n - k):
                with Scope(log, 2):
                    if j == 2:
                        break
            else:
                log.write(60)
                continue
            log.write(50)


def returns_explicit(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    a = Scope(log, 1)
    a.enters()
    for k in range(10):
        b = Scope(log, 2)
        b.enters()
        if k == n - 2:
            b.close()
            a.close()
            return
        b.close()
    a.close()
    log.write(50)


@case(returns_explicit, [1, 2, -2, 2, -2, -1])
@tma.scopes
def returns(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    with Scope(log, 1):
        for k in range(10):
            with Scope(log, 2):
                if k == n - 2:
                    return
    log.write(50)


def elected_returns_explicit(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    s = Elected(log, 1)
    if s.enters():
        for k in range(10):
            if k == n:
                s.close()
                return
            log.write(100 + k)
    s.close()
    log.write(50)


@case(elected_returns_explicit, [100, 101, 102, -1], [-1, 50])
@tma.scopes
def elected_returns(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    with Elected(log, 1):
        for k in range(10):
            if k == n:
                return
            log.write(100 + k)
    log.write(50)


# ----------------------------------------------------------------------- device functions


@cuda.jit(device=True, forceinline=True)
def written_explicit(log, n):
    a = Scope(log, 1)
    a.enters()
    b = Scope(log, 2)
    b.enters()
    if n > 2:
        used = i64(log.used) * 100
        b.close()
        a.close()
        return used
    b.close()
    used = i64(log.used) * 1000
    a.close()
    return used


def values_explicit(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    log.write(written_explicit(log, n))
    log.write(written_explicit(log, n - 1))


@cuda.jit(device=True, forceinline=True)
@tma.scopes
def written(log, n):
    with Scope(log, 1):
        with Scope(log, 2):
            if n > 2:
                return i64(log.used) * 100
        return i64(log.used) * 1000


@case(values_explicit, [1, 2, -2, -1, 200, 1, 2, -2, -1, 8000])
def values(rows, n):
    log = Log(rows[cuda.threadIdx.x])
    log.write(written(log, n))
    log.write(written(log, n - 1))
