"""The notebooks, executed in the simulator: their committed outputs are what they give.

``python -m tests.sim.test_notebooks`` executes them and writes the outputs anew.
"""

import os
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
from matplotlib import font_manager  # noqa: F401  the first import, which can warn, is not a kernel's
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CELL_SECONDS = 120
STRICT = "import warnings\nwarnings.simplefilter('error')"
