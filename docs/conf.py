"""The site that `make docs` builds; docs/development/site.md tells how.

The sources' root is the repository's, so that a relative link means the same here and on a forge.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from docs.site import contents  # noqa: E402

project = "numba_tma"
author = copyright = "the numba-tma authors"
extensions = ["myst_nb", "docs.site.extension"]
root_doc = contents.HOME
include_patterns = [*contents.PATTERNS]
exclude_patterns = [".*", "docs/_build", "numba_tma", "tests"]  # folders that are not walked
nitpicky = True

myst_heading_anchors = 6
myst_links_external_new_tab = False
nb_execution_mode = "off"  # the stored outputs are shown, which tests hold to what a run prints
nb_merge_streams = True

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = "numba_tma"
html_favicon = "site/static/favicon.svg"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "redirect.html"}
templates_path = ["site/templates"]
html_copy_source = html_show_sourcelink = False
html_show_sphinx = False
