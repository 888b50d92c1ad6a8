"""How Sphinx builds the documentation: `make docs`. Nothing in the built pages is loaded from elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config

sys.path.insert(0, str(Path(__file__).parent))

from from_code import write_reference
from from_code.files import link_pages
from from_code.notebooks import NotebookParser
from from_code.pictures import show_both

import fairmile

project = "Fairmile"
author = copyright = "The Fairmile developers"
version = release = fairmile.__version__

extensions = ["myst_parser"]
exclude_patterns = ["from_code", "examples", "schemas", "_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"Fairmile {version}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_use_index = False
html_show_sphinx = False


def _write_reference(app: Sphinx, config: Config) -> None:
    write_reference(Path(app.srcdir))


def _link_pages(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = show_both(link_pages(f"{name}.md", source[0]))


def setup(app: Sphinx) -> None:
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    app.connect("config-inited", _write_reference)
    app.connect("source-read", _link_pages)
