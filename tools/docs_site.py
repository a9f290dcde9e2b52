"""Hooks of MkDocs (see ``mkdocs.yml``) for what a fixed list of pages can't express.

Pages link to files outside of ``docs``, which the site doesn't have; such a link becomes the
file's name. The decisions and the generated references are added to the navigation by folder.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from tools.rest_reference import tables

_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_OPERATIONS = "<!-- operations -->"
_FOLDERS = {"Reference": "reference", "Decisions": "decisions"}


def on_config(config: Any) -> None:
    """Fill the sections of the navigation that list a folder."""
    docs = Path(config["docs_dir"])
    for section in config["nav"]:
        ((title, entries),) = section.items()
        folder = _FOLDERS.get(title)
        if folder is not None:
            listed = {next(iter(entry.values())) for entry in entries}
            found = (page.relative_to(docs).as_posix() for page in (docs / folder).glob("*.md"))
            entries += sorted(page for page in found if page not in listed)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links that leave ``docs`` by the text of the link and the name of the file; insert
    the operations of the admin interface."""
    if _OPERATIONS in markdown:
        markdown = markdown.replace(_OPERATIONS, tables())
    folder = posixpath.dirname(page.file.src_uri)
    return _LINK.sub(lambda link: _inside(link, folder), markdown)


def _inside(link: re.Match[str], folder: str) -> str:
    text, target = link.groups()
    if ":" in target or target.startswith("#"):
        return link.group()
    place = posixpath.normpath(posixpath.join("docs", folder, target))
    if place.startswith("docs/"):
        return link.group()
    return text if text.strip("`") == place else f"{text} (`{place}`)"
