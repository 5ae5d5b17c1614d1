"""The header and the tensors of a GGUF file, read without trust in what the file says of itself.

Each length, count and offset is checked against the bytes that the file has before it is used, so that time and memory
stay in proportion to these bytes. The file is read, not mapped: a process ends when a file that it maps is shortened.
"""

import os
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO, Iterator, Sequence

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.gguf_reader import READER_SUPPORTED_VERSIONS as VERSIONS
from gguf.gguf_reader import GGUFReader

from lib.models.checks import PairError, first_line
from lib.models.gguf_blocks import OTHER_TYPES, Stored, check_finite, short
from lib.models.gguf_files import MAGIC, check_magic

LARGEST_HEADER = 2**26  # bytes; a vocabulary of 262,144 tokens with 515,000 merges takes about 15 million
DEEPEST_ARRAY, MOST_DIMENSIONS = 4, 4
COUNTS = 24  # bytes of the magic, the version and the numbers of tensors and keys
LEAST_KEY, LEAST_TENSOR = 13, 24  # bytes: an empty key and one byte; an empty name and no dimension
NUMBERS = {kind: np.dtype(number).newbyteorder("<") for kind, number in GGUFReader.gguf_scalar_to_np.items()}
PLAIN = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies. shape: in numpy's order, [out, in] for a matrix; start: from the beginning of the file."""

    type: str
    shape: tuple[int, ...]
    start: int
    bytes: int


@dataclass(frozen=True, eq=False)
class Header:
    """The header of a file. metadata: numbers and strings, arrays of numbers as numpy arrays, other arrays as lists;
    keys_end: where they end in the file; alignment: of tensors, bytes; state: the file's size and time of modification.
    """

    version: int
    metadata: dict[str, object]
    tensors: dict[str, Place]
    keys_end: int
    alignment: int
    state: tuple[int, int]  # st_size, st_mtime_ns


def header(path: Path) -> Header:
    """The header of a little-endian GGUF file of version 2 or 3. PairError where it has lengths past the file's end,
    unknown types, duplicated names, rows of no whole blocks, or tensors that overlap or lie outside the file.
    """
    with _opened(path) as file:
        state = _state(file)
        source = _HeaderBytes(path, file, state[0])
        check_magic(path, source.take(min(len(MAGIC), source.size)))
        version = source.integer(4)
        if version and not version & 0xFFFF:
            raise PairError(f"{path} is a big-endian GGUF file, and only little-endian ones are read; take the "
                            "little-endian file of this model, or safetensors")
        if version not in VERSIONS:
            raise PairError(f"{path} is of GGUF version {version}, and versions 2 and 3 are read; convert the model "
                            "again, or take it as safetensors")
        count, keys = source.integer(8), source.integer(8)
        source.thing = f"the list of {keys} keys"
        source.require(keys, LEAST_KEY)
        metadata = {}
        for index in range(keys):
            source.thing = f"key {index + 1} of {keys}"
            key = source.text()
            source.thing = f"key {short(key)}"
            if key in metadata:
                raise source.fault("is listed twice")
            metadata[key] = source.value(source.kind())
        keys_end, alignment = source.at, metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise damaged(path, f"key 'general.alignment' is {alignment!r:.40}, which is no power of two")
        source.thing = f"the list of {count} tensors"
        source.require(count, LEAST_TENSOR)
        listed = [_listed(source, f"tensor {index + 1} of {count}") for index in range(count)]
        if _state(file) != state:
            raise _changed(path)
    return Header(version, metadata, _placed(source, listed, alignment), keys_end, alignment, state)


def joined_header(files: Sequence[Path], headers: Sequence[Header]) -> bytes:
    """The header of one file with the keys of the first of these and the tensors of all, in their order. PairError
    where two have a tensor of the same name.
    """
    first, listed, offset = headers[0], {}, 0
    for file, header in zip(files, headers):
        for name, place in header.tensors.items():
            if name in listed:
                raise damaged(file, f"tensor {short(name)} is in another shard as well")
            offset += -offset % first.alignment
            listed[name] = b"".join((
                struct.pack("<Q", len(encoded := name.encode())), encoded, struct.pack("<I", len(place.shape)),
                struct.pack(f"<{len(place.shape)}Q", *place.shape[::-1]),
                struct.pack("<IQ", GGMLQuantizationType[place.type], offset)))
            offset += place.bytes
    with _opened(files[0]) as file:
        keys = file.read(first.keys_end)[COUNTS:]
        if _state(file) != first.state:
            raise _changed(files[0])
    start = MAGIC + struct.pack("<IQQ", first.version, len(listed), len(first.metadata)) + keys
    start += b"".join(listed.values())
    return start + bytes(-len(start) % first.alignment)


def tensors(path: Path, header: Header) -> Iterator[Stored]:
    """Reads the tensors of a file one after the other. PairError where one has NaN or infinite values or a type
    that cannot be dequantised, or where the file changed since its header was read.
    """
    with _opened(path) as file:
        if _state(file) != header.state:
            raise _changed(path)
        for name, place in header.tensors.items():
            data = np.empty(place.bytes, np.uint8)
            file.seek(place.start)
            if file.readinto(data) < place.bytes or _state(file) != header.state:
                raise _changed(path)
            values = data.view(PLAIN.get(place.type, "<u1")).reshape(*place.shape[:-1], -1)
            stored = Stored(path, name, place.type, place.shape, values)
            check_finite(stored)
            yield stored


def damaged(path: Path, what: str) -> PairError:
    """The PairError for a file whose header contradicts itself or the file."""
    return PairError(f"{path} cannot be read as GGUF ({what}): it is cut off or damaged; fetch it again")


class _HeaderBytes:
    """The bytes of a header in their order. thing: what is being read, for errors."""

    def __init__(self, path: Path, file: BinaryIO, size: int):
        self.path, self.file, self.size = path, file, size
        self.at, self.end, self.thing = 0, min(size, LARGEST_HEADER), "the header"

    def fault(self, what: str) -> PairError:
        return damaged(self.path, f"{self.thing} {what}")

    def require(self, count: int, size: int = 1) -> None:
        """PairError where fewer than count * size bytes are left."""
        if count * size > self.end - self.at:
            owner = "the file" if self.end == self.size else f"a header of at most {self.end} bytes"
            needed = f"{count} x {size}" if size > 1 else count
            raise self.fault(f"needs {needed} bytes, and {self.end - self.at} are left of {owner}")

    def take(self, count: int, size: int = 1) -> bytes:
        self.require(count, size)
        taken = self.file.read(count * size)
        if len(taken) < count * size:
            raise _changed(self.path)
        self.at += len(taken)
        return taken

    def integer(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def text(self) -> str:
        taken = self.take(self.integer(8))
        try:
            return taken.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fault(f"is no text ({first_line(error)})") from None

    def kind(self) -> GGUFValueType:
        number = self.integer(4)
        try:
            return GGUFValueType(number)
        except ValueError:
            raise self.fault(f"has a value of the unknown type {number}") from None

    def value(self, kind: GGUFValueType, depth: int = 0) -> object:
        if kind in NUMBERS:
            return self._numbers(kind, 1)[0].item()
        if kind == GGUFValueType.STRING:
            return self.text()
        if depth == DEEPEST_ARRAY:
            raise self.fault(f"has arrays more than {DEEPEST_ARRAY} deep")
        inner, count = self.kind(), self.integer(8)
        if inner in NUMBERS:
            return self._numbers(inner, count)
        self.require(count, 8)  # a string or an array has at least its length
        return [self.value(inner, depth + 1) for _ in range(count)]

    def _numbers(self, kind: GGUFValueType, count: int) -> np.ndarray:
        taken = self.take(count, NUMBERS[kind].itemsize)
        if kind == GGUFValueType.BOOL and (largest := np.frombuffer(taken, np.uint8).max(initial=0)) > 1:
            raise self.fault(f"has the truth value {largest}, which is neither 0 nor 1")
        return np.frombuffer(taken, NUMBERS[kind])


def _listed(source: _HeaderBytes, thing: str) -> tuple[str, Place]:
    """A tensor's name and its place, from the beginning of the data."""
    source.thing = thing
    name = source.text()
    source.thing = f"tensor {short(name)}"
    dimensions = source.integer(4)
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise source.fault(f"has {dimensions} dimensions, not 1 to {MOST_DIMENSIONS}")
    shape = tuple(source.integer(8) for _ in range(dimensions))[::-1]
    number, offset = source.integer(4), source.integer(8)
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise PairError(f"{source.path} has a quantisation that cannot be read ({source.thing} is of the unknown type "
                        f"{number}); {OTHER_TYPES}") from None
    block, size = GGML_QUANT_SIZES[kind]
    if 0 in shape:
        raise source.fault(f"has a dimension of 0 in its shape {shape}")
    if shape[-1] % block:
        raise source.fault(f"has rows of {shape[-1]} values, no whole blocks of {block} ({kind.name})")
    return name, Place(kind.name, shape, offset, prod(shape) // block * size)


def _placed(source: _HeaderBytes, listed: list[tuple[str, Place]], alignment: int) -> dict[str, Place]:
    """Tensors by name, with their places in the file; the header ends where `source` stands."""
    begin, places = -(-source.at // alignment) * alignment, {}
    for name, place in listed:
        source.thing = f"tensor {short(name)}"
        start = begin + place.start
        if name in places:
            raise source.fault("is listed twice")
        if place.start % alignment:
            raise source.fault(f"has the offset {place.start}, no multiple of the alignment {alignment}")
        if start + place.bytes > source.size:
            raise source.fault(f"has {place.bytes} bytes from {start} on, and the file ends at {source.size}")
        places[name] = Place(place.type, place.shape, start, place.bytes)
    ordered = sorted(places.items(), key=lambda item: item[1].start)
    for (before, first), (name, second) in zip(ordered, ordered[1:]):
        if first.start + first.bytes > second.start:
            raise damaged(source.path, f"tensor {short(name)} begins at {second.start}, inside tensor {short(before)}")
    return places


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise PairError(f"{path} cannot be read ({first_line(error)}); check the path and its disk") from error


def _state(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def _changed(path: Path) -> PairError:
    return PairError(f"{path}: the file changed while it was read; wait until nothing writes to it and start again")
