"""Settings of the Sphinx site; ``make docs`` builds it, offline, with warnings as errors."""

from __future__ import annotations

import sys
from pathlib import Path

from elasticml.ids import VERSION

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS / "extensions"))
sys.path.insert(0, str(DOCS.parent))  # examples.huber, which a tutorial imports

project = "elasticml"
author = "elasticml developers"
copyright = "2026, elasticml developers"
version = release = VERSION

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    # Of this project, in docs/extensions:
    "diagrams",
    "generated_reference",
    "result_figures",
]
exclude_patterns = ["_build", "extensions", "tutorials/gallery/README.txt"]
templates_path: list[str] = []
highlight_language = "none"
nitpicky = False
# An anchor for every heading, as on code-hosting sites.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autosummary_generate = False
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

sphinx_gallery_conf = {
    "examples_dirs": ["tutorials/gallery"],
    "gallery_dirs": ["tutorials/examples"],
    "filename_pattern": r"/\d\d_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 1000,
    "write_computation_times": False,
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "matplotlib_animations": False,
}

html_theme = "pydata_sphinx_theme"
html_title = "elasticml"
html_static_path = ["static"]
html_css_files = ["elasticml.css"]
html_sidebars = {"performance": [], "comparison": []}
html_show_sourcelink = False
html_theme_options = {
    "show_prev_next": True,
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "secondary_sidebar_items": ["page-toc"],
    "header_links_before_dropdown": 8,
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
