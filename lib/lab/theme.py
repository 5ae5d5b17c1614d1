"""The look of all figures: one theme, one palette safe for colour-blind readers, one style per strategy."""

import io
import re
from collections.abc import Iterable, Mapping
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import seaborn as sns
from matplotlib.figure import Figure
from PIL import Image

from lib.lab import atomic_file

# Okabe and Ito's colours without the yellow, which is too light on white, and a grey.
BLACK, GREY, SKY, ORANGE, GREEN, PURPLE, BLUE, VERMILLION = (
    "#000000", "#8A8A8A", "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#0072B2", "#D55E00")
PALE = "#D9D9D9"
COLOURS = 48  # of a picture: more than can be told apart in any figure
SOLID, DASHED, DOTTED = "-", (0, (5, 2)), (0, (1, 1.3))
REFERENCE = {"color": "#666666", "linestyle": ":", "linewidth": 1}  # of a line to compare with
# Colours of a node's role in a round.
ROLES = {"root": BLACK, "drafted": SKY, "accepted": GREEN, "rejected": PALE, "bonus": ORANGE}


class Style(NamedTuple):
    """A strategy's colour, marker and dash, the same in every figure."""

    colour: str
    marker: str
    dash: str | tuple = SOLID


# Each kind of shape has a colour; its variants differ by marker and dash.
STYLES: Mapping[str, Style] = {
    "chain": Style(BLACK, "o"), "star": Style(GREY, "d"), "comb": Style(GREEN, "P"),
    "independent": Style(SKY, "s"), "independent:2": Style(SKY, "s", DASHED), "independent:4": Style(SKY, "D"),
    "kary": Style(ORANGE, "^"), "kary:3": Style(ORANGE, "v", DASHED),
    "expansion": Style(PURPLE, "<"), "expansion:1,1,3,1,1,1,1,1": Style(PURPLE, ">", DASHED),
    "sparse": Style(BLUE, "p"), "optimal": Style(VERMILLION, "X"), "frequent": Style(VERMILLION, "*", DASHED),
    # Rules of verification; the lossy ones are drawn as points alone.
    "greedy": Style(GREY, "d"), "naive": Style(BLACK, "o"), "multi_step": Style(SKY, "s"),
    "k_seq": Style(PURPLE, "D", DASHED), "without_replacement": Style(BLUE, "^"),
    "block": Style(GREEN, "P", DASHED), "traversal": Style(VERMILLION, "X"),
    "typical": Style(ORANGE, "v"), "deterministic": Style(GREEN, "<"), "conservative": Style(PURPLE, ">"),
    "threshold": Style(GREY, "p"),
    # Drafters, and any tree beside a chain.
    "tree": Style(VERMILLION, "^"), "model": Style(VERMILLION, "X"),
    "model:vocabulary=8192": Style(VERMILLION, "v", DASHED),
    "ngrams": Style(BLUE, "o"), "sam": Style(SKY, "s"), "lookup": Style(GREY, "d"),
    "eagle3": Style(GREEN, "P"), "dspark": Style(ORANGE, "^"), "dflash": Style(ORANGE, "<", DASHED),
    "medusa": Style(PURPLE, "D"),
    # With a look-up in front: a square, in the colour of the drafter behind it.
    "combined": Style(BLACK, "s", DOTTED), "combined:vocabulary=8192": Style(VERMILLION, "s", DOTTED),
    "combined:behind=eagle3": Style(GREEN, "s", DOTTED), "combined:behind=dspark": Style(ORANGE, "s", DOTTED),
    "combined:behind=dflash": Style(ORANGE, "p", DOTTED), "combined:behind=medusa": Style(PURPLE, "s", DOTTED),
    # Decoders.
    "own:bfloat16": Style(BLUE, "o"), "own:float32": Style(SKY, "s"), "own:int8": Style(VERMILLION, "X"),
    "own:stored": Style(GREEN, "P"), "vllm": Style(ORANGE, "^"), "llama.cpp": Style(PURPLE, "D"),
    "openvino": Style(BLACK, "v", DASHED), "transformers": Style(GREY, "d", DASHED),
}
# What figures and tables call a family whose name in code says too little.
NAMES = {"optimal": "Sequoia (static)", "frequent": "frequent paths", "independent:4": "4 independent chains",
         "independent:2": "2 independent chains"}
_OTHERS = list(map(Style, (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK, GREY) * 3,
                   "osD^vP<X>ph*d8sHDP^<Xov>", [SOLID] * 8 + [DASHED] * 8 + [DOTTED] * 8))


def styles_of(names: Iterable[str]) -> dict[str, Style]:
    """A style for each name: its own, else that of its family ("kary:4"), else the next of the palette that is free."""
    families = {name: str(name).partition("@")[0].partition(":")[0] for name in names}
    styles = {name: STYLES.get(name) or STYLES.get(family) for name, family in families.items()}
    others = cycle([style for style in _OTHERS if style not in styles.values()])
    return {name: style or next(others) for name, style in styles.items()}


def shown(name: str) -> str:
    """A strategy's name as figures, tables and sentences have it."""
    return NAMES.get(str(name), str(name))


def use_theme() -> None:
    """Sets fonts, grid and sizes of all later figures."""
    sns.set_theme(context="notebook", style="ticks", rc={
        "figure.dpi": 88, "savefig.dpi": 130, "savefig.bbox": "tight", "font.size": 10, "axes.titlesize": 11,
        "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.labelsize": 10, "axes.grid": True,
        "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#555555", "grid.color": "#E8E8E8",
        "grid.linewidth": 0.7, "lines.linewidth": 1.8, "lines.markersize": 5, "legend.frameon": False,
        "legend.fontsize": 9, "xtick.labelsize": 9, "ytick.labelsize": 9, "svg.hashsalt": "tree",
        "figure.max_open_warning": 0, "text.parse_math": False,  # names may hold dollar signs
        "svg.fonttype": "none"})  # text stays text: a third of the bytes, and searchable


def save(figure: Figure, folder: Path, name: str) -> None:
    """Writes a figure as folder/NAME.png and .svg; the same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    atomic_file.replace(folder / f"{name}.png", with_palette(drawn.getvalue()))
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg", metadata={"Date": None})
    rounded = re.sub(r"(\d\.\d\d)\d+", r"\1", drawing.getvalue())  # down to a hundredth of a point
    atomic_file.replace(folder / f"{name}.svg", rounded.encode())


def with_palette(png: bytes) -> bytes:
    """The same picture with few colours and without dithering, in a quarter of the bytes; for figures, not photographs.

    Colours are chosen to be far apart and then moved to the mean of the pixels that they replace. Chosen by frequency,
    the colours of markers would be lost, since a figure is nearly all white.
    """
    with Image.open(io.BytesIO(png)) as picture:
        small = picture.convert("RGB").quantize(
            COLOURS, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    file = io.BytesIO()
    small.save(file, "png", optimize=True)
    return file.getvalue()
