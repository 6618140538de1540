"""The documents that are shown in a browser, as their tags and text."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

HOSTILE = "<script>alert(1)</script>'\"{{ 7 * 7 }}\x1b]0;x\x07 </title></style> javascript:"
VOID = {"meta", "link"}


class Tags(HTMLParser):
    """The tags of a document, which must be closed in order."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(document)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
