"""How Sphinx builds the site: `make docs` writes it into `site/`.

The source folder is that of the repository, so that one set of relative links serves the pages as they are
read on a code host and the site. Nothing is fetched, neither when it is built nor when it is read.
"""

from importlib.metadata import version as installed

from docutils import nodes
from sphinx.application import Sphinx

project = "grassia"
author = "The grassia developers"
copyright = author
release = version = installed("grassia")

extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/notebooks/*.ipynb"]
exclude_patterns = [
    ".*",
    "build",
    "dist",
    "site",
    "src",
    "tests",
    "benchmarks",
    "grassia-*",
    "**/.ipynb_checkpoints",
]

# Links to headings are written as a code host makes them. Notebooks are shown with what they have stored.
myst_heading_anchors = 4
nb_execution_mode = "off"

# Words in single backquotes are links where they name something documented, and code anywhere else.
# What begins with the package's name must be found, but for files that are worth a look and not public.
default_role = "py:obj"
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", r"(?!grassia\.).*"),
    ("py:obj", r"grassia\.(ends|faults|streaming|solvers\.(prior|survey)|data\.(room|blocks\.block_ranges))"),
]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
numpydoc_show_class_members = False
python_maximum_signature_line_length = 80

smartquotes = False

html_theme = "furo"
html_title = "grassia"
html_favicon = "img/icon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
templates_path = ["templates"]
html_additional_pages = {"index": "redirect.html"}
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": False, "top_of_page_buttons": []}


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", describe_outputs)


def describe_outputs(app: Sphinx, doctree: nodes.document) -> None:
    """Pictures of notebooks that have no description (`mystnb: {image: {alt: ...}}` of their cell) get one.

    Sphinx would put the name of the file there, which a screen reader spells out.
    """
    for picture in doctree.findall(nodes.image):
        picture.setdefault("alt", "Plot drawn by the code above")
