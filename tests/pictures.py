"""What the header of a picture says of it, read without matplotlib."""

from pathlib import Path


def width(png: Path) -> int:
    """In pixels."""
    header = png.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n" and header[12:16] == b"IHDR"
    return int.from_bytes(header[16:20])
