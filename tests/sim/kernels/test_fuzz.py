"""Random calls: those that failed once, some new ones, and the script of a failure."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.cases import draw
from tests.fuzz.minimise import minimise, script_of
from tests.fuzz.trial import BAD, FAMILIES, attempt
from tests.tiers import seeds

CORPUS = sorted((Path(__file__).parents[2] / "fuzz" / "corpus").glob("*.json"))
SLOW = ("matmul", "attention", "pipeline")


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_corpus(file):
    verdict, text, _ = attempt(json.loads(file.read_text()))
    assert verdict not in BAD, text


@pytest.mark.parametrize("family", FAMILIES)
@seeds(1, 20)
def test_random_calls(family, seeds):
    for index in seeds:
        case = draw(2026, index, True, family)
        if len(seeds) == 1 and any(name in family for name in SLOW):
            case["absurd"] = ["stream", "str"]  # which launches nothing
        verdict, text, _ = attempt(case)
        assert verdict not in BAD, (
            f"python -m tests.fuzz --only {family} --case 2026:{index}: {text}"
        )


def test_a_failure_is_made_small_and_becomes_a_script_that_runs_alone(tmp_path):
    """A failure that is none: all calls of more than 2 rows count as wrong."""
    case = draw(0, 3, True, "row_sum")
    case = {**case, "absurd": None, "stream": "own"}
    case["choices"] |= {"rows": 19, "columns": 257, "batch": 3}

    def judged(one):
        verdict, text, seconds = attempt(one)
        return "wrong" if one["choices"]["rows"] > 2 else verdict, text, seconds

    small = minimise(case, "wrong", judged, 20)
    assert small["choices"] == {
        **{"rows": 3, "columns": 1, "dtype": "f32", "batch": None, "out": "new"},
    }
    assert small["stream"] == "none" and small["views"] == {}
    script = tmp_path / "alone.py"
    script.write_text(script_of(small, "3 rows"))
    assert not re.search(r"^from tests|^import tests", script.read_text(), flags=re.M)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[0] == "right", done.stdout + done.stderr
