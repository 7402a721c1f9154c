"""Committed texts contain no name of the machine on which they were made."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
READ_BY_PEOPLE = ("*.md", "*.txt", "*.ptx", "*.ipynb", "*.json", "*.toml", "*.yaml")
MACHINE = re.compile(
    # an absolute path: a root folder that does not continue a word, a relative path or a URL
    r"(?<![\w./~$}:*-])/(?:work|home|root|tmp|opt|mnt|var|usr|srv|scratch|private|Users|builds)\b"
    r"|\b[A-Z]:\\\\?[A-Za-z]"
    # a package registry, or the option that names one
    r"|\b(?:pypi|pythonhosted|npmjs|conda|anaconda)\.(?:org|com)\b"
    r"|\b(?:extra-)?index-url\b|\bfind-links\b|file://"
)


def committed():
    """List the files in git, or to be added to it; all files where there is no repository."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        return [path for path in ROOT.rglob("*") if ".venv" not in path.parts]
    return [ROOT / name for name in done.stdout.split("\0") if name]


FILES = sorted(
    str(path.relative_to(ROOT))
    for path in committed()
    if path.is_file() and any(path.match(pattern) for pattern in READ_BY_PEOPLE)
)


def test_the_files_are_found():
    assert {"pyproject.toml", "constraints.txt", "README.md", "CHANGELOG.md"} <= set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_no_path_and_no_registry(name):
    lines = enumerate((ROOT / name).read_text().splitlines(), start=1)
    found = [f"{name}:{number}: {line.strip()}" for number, line in lines if MACHINE.search(line)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "see /work/src/layout.py",
        '"File \\"/home/me/tma/a.py\\", line 3"',
        '  "text": ["/root/x"]',
        "wrote /tmp/cubin",
        "(/usr/local/cuda/bin/ptxas)",
        "path=/opt/wheels",
        "C:\\\\Users\\\\me",
        "numpy @ file:///x/numpy.whl",
        "https://pypi.org/simple",
        "--extra-index-url x",
    ],
)
def test_the_pattern_sees(line):
    assert MACHINE.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "3945 GB/s, read/write, tests/work/x, ./tmp/x, ~/home",
        "https://docs.nvidia.com/cuda/work/home",
        "a / tmp, 1/opt",
        "numpy==2.4.6",
        r'"if limit < KEYS:\n"',
    ],
)
def test_the_pattern_leaves_alone(line):
    assert not MACHINE.search(line)
