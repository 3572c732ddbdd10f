"""The public name of `psrv.cursor.file`; see docs/cursor.md."""

from psrv.cursor.base import CursorError as CursorError
from psrv.cursor.file import FileCursor as FileCursor
