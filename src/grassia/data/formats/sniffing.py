"""Whether bytes that should be text are text; and if they are not, what they may be."""

from __future__ import annotations

import codecs

from grassia.errors import InvalidComponent

__all__ = ["SNIFFED", "is_utf8", "odd_byte", "require_text"]

#: How many bytes of a file are looked at.
SNIFFED = 1 << 16

# Text may hold tabs, line breaks, form feeds, DOS's end of file, and a terminal's escapes.
_ODD = bytes(code for code in range(32) if code not in b"\t\n\v\f\r\x1a\x1b")
_EVEN = bytes(code for code in range(256) if code not in _ODD)
_BEGINNINGS = {
    b"PAR1": "it is a Parquet file; name it .parquet",
    b"\x93NUMPY": "it is a file of numpy.save; name it .npy",
    b"\x89HDF": "it is an HDF5 file; name it .h5",
    b"\x1f\x8b": "it is compressed by gzip; add .gz to its name",
    b"PK\x03\x04": "it is a zip archive, or a spreadsheet; unpack it, or export it as CSV",
    b"\xff\xfe": "it is UTF-16; save it as UTF-8",
    b"\xfe\xff": "it is UTF-16; save it as UTF-8",
}


def require_text(data: bytes, name: str, delimiter: str | None = None) -> None:
    """Refuse what is not text, by the first bytes of a file.

    Bytes that text does not hold are forgiven where all else is UTF-8: fields may hold anything.

    Raises
    ------
    InvalidComponent
        With the place and the value of the first byte that is out of place.

    Examples
    --------
    >>> require_text("größe,b\\n1,2\\n".encode("latin-1"), "a.csv")
    >>> require_text(b"\\x89PNG\\r\\n\\x1a\\n\\x00\\x05", "a.csv")
    Traceback (most recent call last):
    grassia.errors.InvalidComponent: a.csv must be text, in UTF-8; it holds binary data: byte 8 is 0x00
    """
    kind = next((words for begin, words in _BEGINNINGS.items() if data.startswith(begin)), None)
    at = odd_byte(data, delimiter)
    if at is None or (kind is None and is_utf8(data)):
        return
    told = f"; {kind}" if kind is not None else ""
    raise InvalidComponent(
        f"{name} must be text, in UTF-8; it holds binary data: byte {at} is 0x{data[at]:02x}{told}"
    )


def odd_byte(data: bytes, delimiter: str | None = None) -> int | None:
    """The place of the first byte that text does not hold, unless it separates fields; None without one."""
    allowed = _EVEN if delimiter is None else _EVEN + delimiter.encode()
    odd = data.translate(None, allowed)
    return data.index(odd[:1]) if odd else None


def is_utf8(data: bytes) -> bool:
    """Whether all of it is UTF-8, but for a character that is cut at the end."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return False
    return True
