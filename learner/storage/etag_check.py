"""Compare a content with its etag, if that is an MD5, or the MD5 of the MD5s of its parts.

S3 takes the MD5s of the parts as bytes, Swift as hexadecimal text.
"""

from __future__ import annotations

import hashlib
import re

from learner.storage.objects import Object

_MD5 = re.compile(r"[0-9a-f]{32}")


class EtagCheck:
    """Takes an object's content from its beginning to its end.

    Args:
        is_md5: Whether the store's etags are MD5s at all.
    """

    def __init__(self, item: Object, is_md5: bool = True) -> None:
        self._wanted = item.etag.partition("-")[0] if item.parts else item.etag
        self._is_md5 = is_md5 and _MD5.fullmatch(self._wanted) is not None
        self._lengths = list(item.parts)
        self._left = self._lengths.pop(0) if self._lengths else 0
        self._in_parts = bool(item.parts)
        self._of_bytes = hashlib.md5(usedforsecurity=False)
        self._of_text = hashlib.md5(usedforsecurity=False)
        self._part = hashlib.md5(usedforsecurity=False)

    @property
    def can_tell(self) -> bool:
        """Whether the etag says anything about the content."""
        return self._is_md5

    def update(self, content: bytes | memoryview) -> None:
        """Take the next bytes."""
        if not self._is_md5:
            return
        if not self._in_parts:
            self._part.update(content)
            return
        view = memoryview(content)
        while len(view) >= self._left and len(view):
            self._part.update(view[: self._left])
            self._of_bytes.update(self._part.digest())
            self._of_text.update(self._part.hexdigest().encode())
            view = view[self._left :]
            self._part = hashlib.md5(usedforsecurity=False)
            self._left = self._lengths.pop(0) if self._lengths else len(view) + 1
        self._part.update(view)
        self._left -= len(view)

    def agrees(self) -> bool:
        """Return whether all of the content has the etag, as far as the etag can tell."""
        if not self._is_md5:
            return True
        whole = (self._of_bytes, self._of_text) if self._in_parts else (self._part,)
        return self._wanted in [each.hexdigest() for each in whole]
