"""Configuration of the site: Sphinx with MyST and Furo; tutorials run when the site is built."""

import os
import re
import sys
import warnings
from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx.application import Sphinx
from sphinx_gallery.sorting import FunctionSortKey

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))

# Tutorials train on the CPU, fetch nothing, and print no progress bars.
os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ.update(HF_HUB_DISABLE_PROGRESS_BARS="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")

warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")

project = "Descend"
author = "The Descend authors"
project_copyright = author
version = release = installed_version("descend")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "schema_tables",
]
exclude_patterns = ["build", "tutorials", "pictures"]
root_doc = "index"

html_theme = "furo"
html_title = "Descend"
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sourcelink = False
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

# Headings get GitHub's anchors, so that a link works there and here.
myst_heading_anchors = 4

# In docstrings single backticks mark code.
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False

copybutton_exclude = ".linenos, .gp, .go"

TUTORIALS = [
    "layers.py",
    "first_denoiser.py",
    "early_exits.py",
    "language_model.py",
    "own_model.py",
    "unfolded.py",
    "plain_loop.py",
]
WEIGHTS = {"DESCEND_PRETRAINED", "DESCEND_DATA"} <= os.environ.keys()  # the tutorial on layers trains a real model
PICTURES = ["method_in_pictures.py"]

sphinx_gallery_conf = {
    "examples_dirs": ["tutorials", "pictures"],
    "gallery_dirs": ["gallery/tutorials", "gallery/pictures"],
    "filename_pattern": r"\.py$" if WEIGHTS else r"(?<!/layers)\.py$",  # what is run
    "within_subsection_order": FunctionSortKey([*TUTORIALS, *PICTURES].index),
    "default_thumb_file": str(HERE / "layers.png"),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "write_computation_times": False,
    "show_memory": False,
    "min_reported_time": 1,
    "remove_config_comments": True,
    "capture_repr": (),
}


def setup(app: Sphinx) -> None:
    """Let pages link to a tutorial's script, which works in the repository too: here the link leads to its page."""
    script = re.compile(r"(\]\((?:\.\./)*)((?:tutorials|pictures)/\w+)\.py\)")

    def link_pages(app: Sphinx, name: str, source: list[str]) -> None:
        source[0] = script.sub(r"\1gallery/\2.rst)", source[0])

    app.connect("source-read", link_pages)
