"""Figures as small files: PNG with a palette, a quarter of the bytes, and SVG with as many digits as can be seen."""

import io
import re

from PIL import Image

COLOURS = 64  # more than any figure's scale shows apart


def with_palette(png: bytes) -> bytes:
    """The same picture with its most telling colours, undithered; photographs would suffer, figures do not.

    Colours are chosen to lie far apart, then moved amid what they stand for: by how often they occur, a marker's would
    be lost to its neighbours' on a page that is nearly all white.
    """
    with Image.open(io.BytesIO(png)) as picture:
        small = picture.convert("RGB").quantize(
            COLOURS, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    file = io.BytesIO()
    small.save(file, "png", optimize=True)
    return file.getvalue()


def rounded(svg: str) -> str:
    """The same drawing with numbers to a hundredth of a point."""
    return re.sub(r"(\d\.\d\d)\d+", r"\1", svg)
