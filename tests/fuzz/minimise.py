"""A failure made small: fewer options, smaller sizes, plain views; and a script that shows it."""

from __future__ import annotations

import copy
import pprint
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.fuzz.families import Case

HERE = Path(__file__).parent
#: The modules that a script consists of, each after those that it needs.
MODULES = ("memory", "families", "rows", "products", "maps", "absurd", "trial")
Verdict = tuple[str, str, float]


def minimise(case: Case, verdict: str, attempt: Callable[[Case], Verdict], seconds: float) -> Case:
    """Return a smaller case with the same verdict: the smallest found in so many seconds."""
    end = time.monotonic() + seconds
    smaller = True
    while smaller and time.monotonic() < end:
        smaller = False
        for candidate in candidates(case):
            if time.monotonic() > end:
                break
            if attempt(candidate)[0] == verdict:
                case, smaller = candidate, True
                break
    return case


def candidates(case: Case) -> Iterator[Case]:
    """Yield cases with one thing simpler, the boldest first."""
    from tests.fuzz.trial import FAMILIES

    def changed(**changes: object) -> Case:
        return {**copy.deepcopy(case), **changes}

    if case.get("views"):
        yield changed(views={})
    for name in case.get("views", {}):
        yield changed(views={n: v for n, v in case["views"].items() if n != name})
    if case.get("stream", "none") != "none":
        yield changed(stream="none")
    if case.get("bits"):
        yield changed(bits=False)
    for name, choice in FAMILIES[case["family"]].choices.items():
        now = case["choices"][name]
        for value in _simpler(now, choice.values, choice.low):
            yield changed(choices={**case["choices"], name: value})


def _simpler(now: object, values: tuple[object, ...], low: int) -> Iterator[object]:
    if values:
        known = [list(v) if isinstance(v, tuple) else v for v in values]
        place = known.index(list(now) if isinstance(now, tuple) else now)
        yield from known[:place][:1]
    elif isinstance(now, int) and now > low:
        yield from dict.fromkeys(n for n in (low, now // 2, now - 1) if low <= n < now)


def script_of(case: Case, text: str) -> str:
    """Return a Python script that makes the call of a case, and needs nothing of the tests."""
    parts = [f'"""{case["family"]}: {_one_line(text)}"""\n', "from __future__ import annotations\n"]
    for module in MODULES:
        source = (HERE / f"{module}.py").read_text()
        source = re.sub(r'\A""".*?"""\n', "", source, flags=re.S)
        source = source.replace("from __future__ import annotations\n", "")
        source = re.sub(r"^from tests\.[^\n(]*(\([^)]*\))?[^\n]*\n", "", source, flags=re.M)
        source = source.replace("@on_gpu\n", "")
        for other in ("rows", "products", "maps"):
            name = "FAMILIES: tuple[Family, ...] = (\n" if other == "maps" else "FAMILIES = (\n"
            if module == other:
                source = source.replace(name, f"{other.upper()} = (\n")
        source = source.replace("*rows.FAMILIES, *products.FAMILIES, *maps.FAMILIES",
                                "*ROWS_CALLS, *PRODUCTS, *MAPS")  # fmt: skip
        source = re.sub(r"\b(products|maps)\.(?=[A-Z])", "", source)
        parts.append(source.replace("ROWS = (\n", "ROWS_CALLS = (\n"))
    parts.append(f"\nCASE = {pprint.pformat(case, sort_dicts=False)}\n")
    parts.append('if __name__ == "__main__":\n    print(*attempt(CASE), sep="\\n")\n')
    return "".join(parts)


def _one_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()] or [""]
    return lines[-1][:200].replace('"""', "'''").replace("\\", "/")
