"""Figures as small files: PNG with a palette, which takes a quarter of the bytes, and SVG with fewer digits."""

import io
import re

from PIL import Image

COLOURS = 64  # more than can be told apart in any figure


def with_palette(png: bytes) -> bytes:
    """The same picture with few colours and without dithering, which suits figures but not photographs.

    Colours are chosen to be far apart and then moved to the mean of the pixels that they replace. Chosen by frequency,
    the colours of markers would be lost, since a figure is nearly all white.
    """
    with Image.open(io.BytesIO(png)) as picture:
        small = picture.convert("RGB").quantize(
            COLOURS, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    file = io.BytesIO()
    small.save(file, "png", optimize=True)
    return file.getvalue()


def rounded(svg: str) -> str:
    """The same drawing with numbers rounded down to a hundredth of a point."""
    return re.sub(r"(\d\.\d\d)\d+", r"\1", svg)
