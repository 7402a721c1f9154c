"""ptxas takes the forms of ptx/*.ptx where the table has them, and nowhere else."""

import functools
import operator
import re

import pytest

from numba_tma import ptx
from numba_tma.host.architectures import TARGETS, TMA
from numba_tma.tools.testing import PtxasError, ptxas
from tests import ptx_contract as contract
from tests.ptx_contract import WRITTEN, warnings
from tests.tiers import every, quick


@pytest.mark.parametrize("file", contract.FILES, ids=lambda f: f.stem)
@pytest.mark.parametrize("target", quick(["90", "90a", "100a", "120"], TMA))
def test_assembles(file, target):
    version = tuple(map(int, re.search(r"^\.version (\d)\.(\d)", file.read_text(), re.M).groups()))
    isa = ".".join(map(str, max(version, TARGETS[target])))
    text = re.sub(r"^\.version \S+", f".version {isa}", file.read_text(), flags=re.M)
    text = re.sub(r"^\.target \w+$", f".target sm_{target}", text, flags=re.M)
    if target not in contract.architectures(file):
        with pytest.raises(PtxasError):
            ptxas(text)
        return
    report = ptxas(text)
    assert (report.arch, warnings(report)) == (f"sm_{target}", [])
    assert report.spill_stores == report.spill_loads == 0


# ------------------------------------------------------- the first version and architecture


#: The newest PTX ISA of ptxas, and all that it takes.
ISAS = [*((6, n) for n in range(6)), *((7, n) for n in range(9)), *((8, n) for n in range(9))]
ISAS += [(9, n) for n in range(6)]

#: Targets whose sets of instructions differ most; `make test-all` takes all.
FEW = ["90a", "100", "103f", "110a", "120a"]


def refused(forms, isa, target):
    """Return the forms of which ptxas says that the version or the target lacks them."""
    lines = [form.entry(f"form{i}") for i, form in enumerate(forms)]
    with pytest.raises(PtxasError) as caught:
        ptxas(contract.module(lines, isa, target))
    missing = r"line (\d+); error *: .*?(?:requires?|not supported|illegal|unexpected|unknown)"
    named = set(re.findall(missing, str(caught.value), re.I))
    return [form for i, form in enumerate(forms, 4) if str(i) in named]


@pytest.mark.parametrize("target", quick(FEW, TARGETS))
def test_every_form_assembles_where_the_table_has_it(target):
    """Each at the lowest PTX ISA version that the table names for the target."""
    found = [form for form in WRITTEN.values() if target in form.targets]
    for isa in {form.isa_on(target) for form in found}:
        forms = [form for form in found if form.isa_on(target) == isa]
        ptxas(contract.module([f.entry(f"form{i}") for i, f in enumerate(forms)], isa, target))


@pytest.mark.parametrize("target", quick([*FEW, "100a"], TARGETS))
def test_no_form_assembles_elsewhere_or_before(target):
    lacking = [form for form in WRITTEN.values() if target not in form.targets]
    assert not lacking or refused(lacking, ISAS[-1], target) == lacking
    # A target's first version has the instructions that are older than the target, and a later
    # target may have some from its beginning.
    found = [form for form in WRITTEN.values() if target in form.targets]
    found = [f for f in found if f.targets.since is None or target == next(iter(f.targets))]
    for isa in {form.isa_on(target) for form in found} - {TARGETS[target]}:
        forms = [form for form in found if form.isa_on(target) == isa]
        assert refused(forms, ISAS[ISAS.index(isa) - 1], target) == forms


@pytest.mark.parametrize("row", every(3, ptx.TABLE.values()), ids=lambda row: row.name)
def test_every_combination_assembles(row):
    """Ranks, choices and optional operands that are legal each are legal together."""
    written = next(form for form in WRITTEN.values() if form.name.partition("[")[0] == row.name)
    every = list(row.combinations())
    # No function may act both for a block and for a pair of blocks.
    for group in {form.choices.get("cta_group") for form in every}:
        forms = [form for form in every if form.choices.get("cta_group") == group]
        target = of_all(form.targets for form in forms)
        texts = [contract.form_text(form) for form in forms]
        isa = max(form.isa_on(target) for form in forms)
        ptxas(contract.module([written.entry("forms", texts)], isa, target))


def of_all(sets):
    """Return the oldest target that all of these sets have, of those with TMA if there is one."""
    common = functools.reduce(operator.and_, sets)
    return next((target for target in common if target in TMA), next(iter(common)))
