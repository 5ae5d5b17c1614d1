"""Figures as small PNG files: a palette of 256 colours, a third of the bytes, without a difference that is seen."""

import io

from PIL import Image


def with_palette(png: bytes) -> bytes:
    """The same picture with its 256 most telling colours, undithered; photographs would suffer, figures do not."""
    with Image.open(io.BytesIO(png)) as picture:
        small = picture.convert("RGB").quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    file = io.BytesIO()
    small.save(file, "png", optimize=True)
    return file.getvalue()
