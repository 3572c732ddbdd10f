"""Compare a content with its etag, if that is an MD5, or the MD5 of the MD5s of its parts."""

from __future__ import annotations

import hashlib
import re

from learner.storage.objects import Object

_MD5 = re.compile(r"[0-9a-f]{32}")


class EtagCheck:
    """Takes an object's content from its beginning to its end."""

    def __init__(self, item: Object) -> None:
        self._wanted = item.etag.partition("-")[0] if item.parts else item.etag
        self._is_md5 = _MD5.fullmatch(self._wanted) is not None
        self._lengths = list(item.parts)
        self._left = self._lengths.pop(0) if self._lengths else 0
        self._of_parts = hashlib.md5(usedforsecurity=False) if item.parts else None
        self._part = hashlib.md5(usedforsecurity=False)

    @property
    def can_tell(self) -> bool:
        """Whether the etag says anything about the content."""
        return self._is_md5

    def update(self, content: bytes) -> None:
        """Take the next bytes."""
        if not self._is_md5:
            return
        if self._of_parts is None:
            self._part.update(content)
            return
        view = memoryview(content)
        while len(view) >= self._left and len(view):
            self._part.update(view[: self._left])
            self._of_parts.update(self._part.digest())
            view = view[self._left :]
            self._part = hashlib.md5(usedforsecurity=False)
            self._left = self._lengths.pop(0) if self._lengths else len(view) + 1
        self._part.update(view)
        self._left -= len(view)

    def agrees(self) -> bool:
        """Return whether all of the content has the etag, as far as the etag can tell."""
        if not self._is_md5:
            return True
        whole = self._part if self._of_parts is None else self._of_parts
        return whole.hexdigest() == self._wanted
