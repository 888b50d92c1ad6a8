"""Scripts of one type in a web page, as they stand in it."""

from __future__ import annotations

from html.parser import HTMLParser


def page_scripts(page: str, media_type: str) -> list[str]:
    """Return the contents of the scripts of a type, such as `application/ld+json`, in order."""
    parser = _Scripts(media_type)
    parser.feed(page)
    parser.close()
    return [text for text in ("".join(parts).strip() for parts in parser.scripts) if text]


class _Scripts(HTMLParser):
    def __init__(self, media_type: str) -> None:
        super().__init__(convert_charrefs=False)
        self.scripts: list[list[str]] = []
        self._media_type = media_type
        self._is_inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kind = (dict(attrs).get("type") or "").partition(";")[0].strip().lower()
        self._is_inside = tag == "script" and kind == self._media_type
        if self._is_inside:
            self.scripts.append([])

    def handle_endtag(self, tag: str) -> None:
        self._is_inside = self._is_inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._is_inside:
            self.scripts[-1].append(data)
