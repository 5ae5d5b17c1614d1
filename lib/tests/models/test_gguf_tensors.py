"""GGUF files read without trust: what the gguf package reads is read alike, and each fault has one clear error."""

import os
import re
import time
import tracemalloc
from pathlib import Path
from struct import pack

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.models import PairError, gguf_tensors
from lib.models.gguf_blocks import BLOCKS, Stored, floats, unpacked
from lib.tests import tiny_gguf

HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}
U8, I8, U32, FLOAT, BOOL, TEXT, ARRAY, U64 = 0, 1, 4, 6, 7, 8, 9, 10
F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8
HUGE, ALIGNMENT = 2**60, "general.alignment"


def random_bytes(kind: Kind, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Blocks of random bits whose scales are finite: uint8 [*shape[:-1], bytes of a row]."""
    rng, (block, size) = np.random.default_rng(seed), gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // block, size), dtype=np.uint8)
    for at in HALVES[kind.name]:
        scales = rng.standard_normal((*blocks.shape[:-1], 1)).astype(np.float16)
        blocks[..., at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def written(path: Path, tensors: dict[str, tuple[np.ndarray, Kind]]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    return finished(writer, path)


def finished(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read(path: Path) -> list[Stored]:
    return list(gguf_tensors.tensors(path, gguf_tensors.header(path)))


def refusal(path: Path, reads=read) -> str:
    """What is said of a file: it begins with the file's name and ends with what to do."""
    with pytest.raises(PairError) as caught:
        reads(path)
    said = str(caught.value)
    assert said.startswith(str(path)) and re.search("; (fetch|take|convert|wait|check) [^;]+$|, or take [^;]+$", said)
    assert len(said) < len(str(path)) + 400 and said.isprintable()
    return said.removeprefix(str(path))


def same(header: gguf_tensors.Header, tensors: list[Stored], reader: gguf.GGUFReader) -> None:
    """Asserts that a file reads as in the gguf package, arrays of arrays excepted, which that flattens."""
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert list(fields) == list(header.metadata) and header.version == reader.fields["GGUF.version"].contents()
    for key, field in fields.items():
        value = header.metadata[key]
        if not isinstance(value, list) or not any(isinstance(each, (list, np.ndarray)) for each in value):
            value = value.tolist() if isinstance(value, np.ndarray) else value
            assert repr(value) == repr(field.contents()), key  # as text, NaN equals itself
    assert [each.name for each in tensors] == list(header.tensors) == [each.name for each in reader.tensors]
    for ours, theirs in zip(tensors, reader.tensors):
        place = header.tensors[ours.name]
        assert (place.start, place.bytes, place.type) == (theirs.data_offset, theirs.n_bytes, theirs.tensor_type.name)
        assert ours.type == place.type and ours.shape == place.shape == tuple(theirs.shape[::-1].tolist())
        assert ours.data.shape == theirs.data.shape and ours.data.tobytes() == theirs.data.tobytes()


# ------------------------------------------------------------------------------------------------------ what works


@pytest.mark.parametrize("quantised", [Kind.Q8_0, Kind.Q4_0, Kind.BF16, Kind.F16])
def test_a_file_reads_as_in_the_gguf_package(tmp_path, quantised):
    path = tiny_gguf.write(tmp_path / "one.gguf", quantised=quantised)
    header = gguf_tensors.header(path)
    same(header, read(path), gguf.GGUFReader(path))
    assert header.metadata["tokenizer.ggml.tokens"] == tiny_gguf.TOKENS
    assert header.tensors["blk.0.ffn_down.weight"].shape == (tiny_gguf.HIDDEN, tiny_gguf.FEED)


def test_all_types_of_metadata(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "keys.gguf", "llama")
    for add, value in ((writer.add_uint8, 255), (writer.add_int8, -128), (writer.add_uint16, 65535),
                       (writer.add_int16, -9), (writer.add_uint32, 2**32 - 1), (writer.add_int32, -1),
                       (writer.add_uint64, 2**64 - 1), (writer.add_int64, -2**63), (writer.add_float32, 0.1),
                       (writer.add_float64, 0.1), (writer.add_bool, True), (writer.add_string, "ä\n🌳")):
        add(add.__name__, value)
    for name, array in {"ints": [1, -2], "floats": [0.5, float("nan")], "truths": [True, False], "texts": ["a", "ß"],
                        "nested": [[1, 2], [3]]}.items():
        writer.add_array(name, array)
    writer.add_custom_alignment(64)
    writer.add_tensor("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    path = finished(writer, tmp_path / "keys.gguf")
    header = gguf_tensors.header(path)
    same(header, read(path), gguf.GGUFReader(path))
    assert [each.tolist() for each in header.metadata["nested"]] == [[1, 2], [3]]
    assert header.metadata["truths"].dtype == bool and header.tensors["w"].start % 64 == 0


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("shape", [(512,), (5, 256), (2, 3, 512)], ids=str)
def test_unpacked_blocks_are_what_the_gguf_package_dequantises(tmp_path, name, shape):
    kind, rng = Kind[name], np.random.default_rng(1)
    files = {"random": (random_bytes(kind, shape), kind)}
    if not name.endswith("_K"):  # the package has no quantisation for these
        rows = rng.standard_normal(shape).astype(np.float32)
        files |= {"weights": (gguf.quants.quantize(rows, kind), kind),
                  "zeros": (gguf.quants.quantize(0 * rows, kind), kind)}
    path = written(tmp_path / "one.gguf", files)
    for stored in read(path):
        form = unpacked(stored)
        group = 16 if name == "Q6_K" else 32
        scales = (*shape[:-1], shape[-1] // group)
        assert form.group == group and form.quants.shape == stored.shape == shape
        assert form.scale.shape == scales and form.scale.dtype == np.float32
        assert form.bits == (4 if name.startswith("Q4") else 8)
        assert form.quants.dtype == (np.uint8 if form.bits == 4 else np.int8)
        assert form.quants.max() < 16 or form.bits == 8
        weights = np.repeat(form.scale, group, axis=-1) * form.quants
        if form.offset is not None:
            assert form.offset.shape == scales and form.offset.dtype == np.float32
            weights += np.repeat(form.offset, group, axis=-1)
        assert weights.dtype == np.float32
        assert np.array_equal(weights, gguf.quants.dequantize(files[stored.name][0], kind)), stored.name


def test_floats_are_what_the_gguf_package_dequantises(tmp_path):
    values = np.random.default_rng(2).standard_normal((3, 64)).astype(np.float32)
    path = written(tmp_path / "one.gguf", {kind.name: (gguf.quants.quantize(values, kind), kind)
                                           for kind in (Kind.F32, Kind.F16, Kind.BF16)})
    for stored, theirs in zip(read(path), gguf.GGUFReader(path).tensors):
        ours = floats(stored)
        assert ours.dtype == np.float32 and ours.shape == values.shape
        assert np.array_equal(ours, gguf.quants.dequantize(theirs.data, theirs.tensor_type)), stored.name


def test_other_types_are_read_but_not_unpacked(tmp_path):
    kinds = [kind for kind in gguf.quants._type_traits if kind.name not in (*BLOCKS, "BF16")]
    files = {kind.name: (np.zeros(gguf.quant_shape_to_byte_shape((2, 256), kind), np.uint8), kind) for kind in kinds}
    files |= {"I32": (np.arange(8, dtype=np.int32).reshape(2, 4), Kind.I32), "F64": (np.ones((2, 4)), Kind.F64)}
    path = written(tmp_path / "one.gguf", files)
    stored = read(path)
    same(gguf_tensors.header(path), stored, gguf.GGUFReader(path))
    for each in stored:
        assert f": tensor '{each.name}' is {each.type}, which is not read as blocks; take the model as Q4_1" in refusal(
            path, lambda _: unpacked(each))
        assert "which is not read as floats" in refusal(path, lambda _: floats(each))


# -------------------------------------------------------------------------------------------------- what does not


def text(value: str | bytes) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return pack("<Q", len(value)) + value


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + pack("<I", kind) + value


def info(name: str = "w", shape: tuple[int, ...] = (2, 32), kind: int = Q8_0, offset: int = 0) -> bytes:
    return text(name) + pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, offset)


def content(*, keys: tuple[bytes, ...] = (), infos: tuple[bytes, ...] = (info(),), version: int = 3,
            alignment: int = 32, counts: tuple[int, int] | None = None, data: bytes = bytes(128)) -> bytes:
    """A file's bytes, by default those of a valid one with a tensor of 2 x 34 bytes."""
    head = b"GGUF" + pack("<IQQ", version, *(counts or (len(infos), len(keys)))) + b"".join((*keys, *infos))
    return head + bytes(-len(head) % alignment) + data


def array(kind: int, count: int, values: bytes = b"") -> bytes:
    return pack("<IQ", kind, count) + values


def nested(depth: int) -> bytes:
    return (depth - 1) * array(ARRAY, 1) + array(U8, 1, b"\1")


def keyed(kind: int, value: bytes, name: str | bytes = "a", times: int = 1) -> bytes:
    """A valid file but for its key."""
    return content(keys=times * (key(name, kind, value),))


def listing(*infos: bytes) -> bytes:
    """A valid file but for its list of tensors."""
    return content(infos=infos, data=bytes(256))


def test_the_smallest_files(tmp_path):
    path = tmp_path / "one.gguf"
    for whole in (content(), content(version=2), content(infos=(), data=b""), content(keys=(key("", U8, b"\1"),)),
                  content(keys=(key("a", ARRAY, array(U32, 0)), key("b", ARRAY, array(TEXT, 0)))),
                  content(keys=(key("a", ARRAY, nested(gguf_tensors.DEEPEST_ARRAY)),)),
                  content(keys=(key(ALIGNMENT, U32, pack("<I", 1)),), alignment=1, data=bytes(68))):
        path.write_bytes(whole)
        same(gguf_tensors.header(path), read(path), gguf.GGUFReader(path))


FAULTS = {  # a file's bytes, and what is said of them
    "empty": (b"", "is no GGUF file: it does not begin with GGUF; fetch it again, or name another file"),
    "short": (b"GGUF\3\0", "(the header needs 4 bytes, and 2 are left of the file): it is cut off or damaged; f"),
    "version 1": (content(version=1), "is of GGUF version 1, and versions 2 and 3 are read; convert the model again"),
    "version 4": (content(version=4), "is of GGUF version 4"),
    "version 0": (content(version=0), "is of GGUF version 0"),
    "big-endian": (content(version=3 << 24), "is a big-endian GGUF file, and only little-endian ones are read; take"),
    "number of keys": (content(counts=(1, HUGE)), f"(the list of {HUGE} keys needs {HUGE} x 13 bytes, and"),
    "number of tensors": (content(counts=(HUGE, 0)), f"(the list of {HUGE} tensors needs {HUGE} x 24 bytes, and"),
    "key": (content(keys=(pack("<Q", HUGE) + bytes(16),)), f"(key 1 of 1 needs {HUGE} bytes, and"),
    "string": (keyed(TEXT, pack("<Q", 2**64 - 1)), f"(key 'a' needs {2**64 - 1} bytes, and"),
    "array": (keyed(ARRAY, array(U64, HUGE)), f"(key 'a' needs {HUGE} x 8 bytes, and"),
    "array of bytes": (keyed(ARRAY, array(U8, HUGE)), f"(key 'a' needs {HUGE} bytes, and"),
    "array of strings": (keyed(ARRAY, array(TEXT, HUGE)), f"(key 'a' needs {HUGE} x 8 bytes, and"),
    "array of arrays": (keyed(ARRAY, array(ARRAY, HUGE)), f"(key 'a' needs {HUGE} x 8 bytes, and"),
    "deep array": (keyed(ARRAY, nested(9999)), "(key 'a' has arrays more than 4 deep)"),
    "type of value": (keyed(13, b"\0"), "(key 'a' has a value of the unknown type 13)"),
    "type of array": (keyed(ARRAY, array(99, 0)), "(key 'a' has a value of the unknown type 99)"),
    "truth": (keyed(BOOL, b"\2"), "(key 'a' has the truth value 2, which is neither 0 nor 1)"),
    "encoding": (keyed(TEXT, text(b"\xff")), "(key 'a' is no text ('utf-8' codec can't decode byte 0xff"),
    "key's encoding": (keyed(U8, b"\0", b"\xff"), "(key 1 of 1 is no text ("),
    "same keys": (keyed(U8, b"\0", times=2), "(key 'a' is listed twice)"),
    "long key": (keyed(U8, b"\0", "a" * 9999, times=2), "aaa...' is listed twice)"),
    "odd key": (keyed(U8, b"\0", "a\n\0", times=2), r"(key 'a\n\x00' is listed twice)"),
    "alignment": (keyed(U32, pack("<I", 24), ALIGNMENT), "(key 'general.alignment' is 24, which is no power of two)"),
    "alignment 0": (keyed(U32, pack("<I", 0), ALIGNMENT), "'general.alignment' is 0, which is no power of two)"),
    "text alignment": (keyed(TEXT, text("x" * 999), ALIGNMENT), "(key 'general.alignment' is 'xxx"),
    "wide alignment": (keyed(U32, pack("<I", 2**31), ALIGNMENT), f"(tensor 'w' has 68 bytes from {2**31} on, and the"),
    "name": (listing(pack("<Q", HUGE) + bytes(32)), f"(tensor 1 of 1 needs {HUGE} bytes, and"),
    "no dimension": (listing(info(shape=())), "(tensor 'w' has 0 dimensions, not 1 to 4)"),
    "many dimensions": (listing(info(shape=5 * (1,))), "(tensor 'w' has 5 dimensions, not 1 to 4)"),
    "no values": (listing(info(shape=(0, 32))), "(tensor 'w' has a dimension of 0 in its shape (0, 32))"),
    "product": (listing(info(shape=(2**32, 2**32))), f"(tensor 'w' has {2**59 * 34} bytes from 96 on, and the file"),
    "product that is 0 in 64 bits": (listing(info(shape=(2**63, 2**63, 32))), f"has {2**126 * 34} bytes from"),
    "type": (listing(info(kind=4)), "quantisation that cannot be read (tensor 'w' is of the unknown type 4); take the"),
    "rows": (listing(info(shape=(32, 33))), "(tensor 'w' has rows of 33 values, no whole blocks of 32 (Q8_0))"),
    "offset": (listing(info(offset=2**63)), f"(tensor 'w' has 68 bytes from {2**63 + 96} on, and the file ends at"),
    "offset's alignment": (listing(info(offset=4)), "has the offset 4, no multiple of the alignment 32)"),
    "cut off": (content()[:-61], "(tensor 'w' has 68 bytes from 96 on, and the file ends at 163)"),
    "same names": (listing(info(), info(offset=96)), "(tensor 'w' is listed twice)"),
    "overlap": (listing(info("b", offset=64), info("a")), "(tensor 'b' begins at 192, inside tensor 'a')"),
    "Q8_1": (listing(info(kind=9)), "(Dequantization for Q8_1 is not yet implemented; tensor 'w'); take the model as"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(tmp_path, fault):
    path, (whole, says) = tmp_path / "odd.gguf", FAULTS[fault]
    path.write_bytes(whole)
    tracemalloc.start()
    try:
        assert says in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_header_of_any_length_is_refused(tmp_path):
    """The file claims a string of its own length, most of which takes no space on the disk."""
    path = tmp_path / "long.gguf"
    path.write_bytes(content(keys=(key("a", TEXT, pack("<Q", 2**31)),)))
    os.truncate(path, 2**32)
    assert f"(key 'a' needs {2**31} bytes, and" in (said := refusal(path))
    assert f"are left of a header of at most {gguf_tensors.LARGEST_HEADER} bytes)" in said


@pytest.mark.parametrize("name", [*BLOCKS, "F32", "F16", "BF16", "F64", "Q5_K", "IQ4_NL"])
@pytest.mark.parametrize("odd", [np.nan, -np.inf], ids=str)
def test_values_that_are_not_finite(tmp_path, name, odd):
    block, size = gguf.GGML_QUANT_SIZES[Kind[name]]
    single = np.float32(odd).tobytes()
    value = {"F32": single, "BF16": single[2:], "F64": np.float64(odd).tobytes()}.get(name, np.float16(odd).tobytes())
    for at in HALVES.get(name, [0]):
        data = np.zeros((3, 512 // block * size), np.uint8)
        data[2, -size:][at : at + len(value)] = list(value)
        path = written(tmp_path / "odd.gguf", {"w": (data, Kind[name])})
        assert re.match(rf": tensor 'w' \({name}\) holds (nan|-?inf) as a weight or scale; fetch the file again, or "
                        "take another file of this model$", refusal(path))


CHANGES = {"shortened": lambda path: os.truncate(path, 150), "longer": lambda path: os.truncate(path, 999),
           "written to": lambda path: os.utime(path, ns=(5, 5))}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_file_that_changes_while_it_is_read(tmp_path, monkeypatch, change):
    path = tmp_path / "one.gguf"
    whole = content(keys=(key("a", U8, b"\1"),), infos=(info("w"), info("v", offset=96)), data=bytes(256))
    says = ": the file changed while it was read; wait until nothing writes to it and start again"
    path.write_bytes(whole)
    header = gguf_tensors.header(path)
    change(path)
    assert refusal(path, lambda path: next(gguf_tensors.tensors(path, header))) == says

    path.write_bytes(whole)
    tensors = gguf_tensors.tensors(path, gguf_tensors.header(path))
    assert next(tensors).name == "w"
    change(path)
    assert refusal(path, lambda _: next(tensors)) == says

    path.write_bytes(whole)
    text = gguf_tensors._HeaderBytes.text
    monkeypatch.setattr(gguf_tensors._HeaderBytes, "text", lambda source: (change(path), text(source))[1])
    assert refusal(path, gguf_tensors.header) == says


def test_files_that_cannot_be_read(tmp_path):
    assert "cannot be read ([Errno 21] Is a directory" in refusal(tmp_path)
    assert "cannot be read ([Errno 2] No such file" in (said := refusal(tmp_path / "no.gguf"))
    assert said.endswith("; check the path and its disk")


# ------------------------------------------------------------------------------------------------------- any bytes


WHOLE = content(
    keys=(key("general.architecture", TEXT, text("llama")), key(ALIGNMENT, U32, pack("<I", 32)),
          key("x", FLOAT, pack("<f", 0.5)), key("b", BOOL, b"\1"), key("n", U64, pack("<Q", 7)),
          key("i", ARRAY, array(I8, 3, b"\1\2\3")), key("t", ARRAY, array(TEXT, 2, text("ab") + text("c")))),
    infos=(info("norm", (3,), F32), info("q", (2, 32), Q4_0, 32), info("h", (2, 2), F16, 96),
           info("w", (1, 32), Q8_0, 128)),
    data=pack("<3f", 1, 2, 3) + bytes(20) + bytes(range(36)) + bytes(28) + bytes(8) + bytes(24) + bytes(34))
PLACE = st.integers(0, len(WHOLE) - 1)
EDITS = st.one_of(
    st.tuples(st.just("flip"), PLACE, st.integers(1, 255)),
    st.tuples(st.just("number"), PLACE, st.sampled_from([0, 1, 2, 2**31, 2**32 - 1, HUGE, 2**63, 2**64 - 1])),
    st.tuples(st.just("cut"), PLACE),
    st.tuples(st.just("splice"), PLACE, PLACE, st.integers(0, 64), st.booleans()))


def edited(whole: bytes, edits: list[tuple]) -> bytes:
    """A file with single bytes changed, 8-byte numbers written over it, its end cut off, or pieces of it put elsewhere,
    over what stands there or before it.
    """
    for edit, place, *rest in edits:
        if edit == "flip" and place < len(whole):
            whole = whole[:place] + bytes([whole[place] ^ rest[0]]) + whole[place + 1 :]
        elif edit == "number":
            whole = whole[:place] + pack("<Q", rest[0]) + whole[place + 8 :]
        elif edit == "cut":
            whole = whole[:place]
        elif edit == "splice":
            source, length, over = rest
            piece = whole[source : source + length]
            whole = whole[:place] + piece + whole[place + over * len(piece) :]
    return whole


@settings(max_examples=250, deadline=None)
@given(edits=st.lists(EDITS, max_size=3))
def test_any_bytes_are_read_as_in_the_gguf_package_or_refused(tmp_path_factory, edits):
    path = tmp_path_factory.getbasetemp() / "any.gguf"
    path.write_bytes(edited(WHOLE, edits))
    begun = time.process_time()
    try:
        header, tensors = gguf_tensors.header(path), read(path)
    except PairError:
        assert edits and refusal(path)
        return
    finally:
        assert time.process_time() - begun < 1
    try:
        reader = gguf.GGUFReader(path)
    except Exception:  # it refuses some files that are read here, such as those with an alignment of 64 bits
        return
    same(header, tensors, reader)
