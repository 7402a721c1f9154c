"""The instruction descriptor of tcgen05.mma, bit by bit."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_tma.host.tcgen05_descriptor import (
    OPERAND_CODES,
    SCALED,
    InstructionDescriptor,
    decode_instruction_descriptor,
    instruction_descriptor,
)


@pytest.mark.parametrize(
    ("description", "bits"),
    [
        (InstructionDescriptor("f16", 128, 128, "bf16", "bf16"), 0x08200490),
        (InstructionDescriptor("f16", 256, 256, "bf16", "bf16"), 0x10400490),
        (
            InstructionDescriptor("mxf4nvf4", 128, 128, "e2m1", "e2m1", scale_type="ue4m3"),
            0x08200480,
        ),
        # Field by field, from the lowest bit of each.
        (InstructionDescriptor("f16", 16, 8, "f16", "f16", "f16"), 1 << 24 | 1 << 17),
        (
            InstructionDescriptor("f16", 16, 8, "f16", "f16", "f16", selector=3),
            1 << 24 | 1 << 17 | 3,
        ),
        (
            InstructionDescriptor("f16", 16, 8, "f16", "bf16", "f16", "MN", "K", True, False, True),
            1 << 24 | 1 << 17 | 1 << 15 | 1 << 13 | 1 << 10 | 1 << 2,
        ),
        (
            InstructionDescriptor(
                "f16", 32, 64, "f16", "f16", "f32", "K", "MN", False, True, max_shift=32
            ),
            3 << 30 | 2 << 24 | 8 << 17 | 1 << 16 | 1 << 14 | 1 << 4,
        ),
        (
            InstructionDescriptor("i8", 64, 16, "i8", "u8", "i32", saturate=True),
            4 << 24 | 2 << 17 | 1 << 7 | 2 << 4 | 1 << 3,
        ),
        (
            InstructionDescriptor("f8f6f4", 64, 16, "e3m2", "e2m1", "f32"),
            4 << 24 | 2 << 17 | 5 << 10 | 4 << 7 | 1 << 4,
        ),
        (
            InstructionDescriptor("tf32", 64, 16, "tf32", "tf32"),
            4 << 24 | 2 << 17 | 2 << 10 | 2 << 7 | 1 << 4,
        ),
        (
            InstructionDescriptor(
                "mxf8f6f4", 256, 16, "e5m2", "e2m3", scale_type="ue8m0", scale_a_id=3, scale_b_id=2
            ),
            3 << 29 | 2 << 27 | 1 << 23 | 2 << 17 | 3 << 10 | 1 << 7 | 2 << 4,
        ),
        (
            InstructionDescriptor(
                "mxf4", 128, 16, "e2m1", "e2m1", scale_type="ue8m0", scale_a_id=2, k96=True
            ),
            1 << 31 | 2 << 29 | 1 << 27 | 1 << 23 | 2 << 17 | 1 << 10 | 1 << 7,
        ),
    ],
)
def test_known_values(description, bits):
    assert instruction_descriptor(description) == bits
    assert decode_instruction_descriptor(bits, description.kind) == description


@st.composite
def descriptions(draw):
    """Any description that has a descriptor, whether or not there is such a product."""
    kind = draw(st.sampled_from(sorted(OPERAND_CODES)))
    types = st.sampled_from(sorted(OPERAND_CODES[kind]))
    flag, major = st.booleans(), st.sampled_from(["K", "MN"])
    values = {
        "a": draw(types),
        "b": draw(types),
        "n": 8 * draw(st.integers(1, 32)),
        "sparse": draw(flag),
    }
    if kind != "i8":
        values |= {"negate_a": draw(flag), "negate_b": draw(flag)}
    if not kind.startswith("mxf4"):
        values |= {"a_major": draw(major), "b_major": draw(major)}
    else:
        values |= {"k96": draw(flag)}
    if kind in SCALED:
        values |= {f"scale_{x}_id": draw(st.integers(0, 3)) for x in "ab"}
        values |= {"scale_type": draw(st.sampled_from(["ue4m3", "ue8m0"]))}
        values |= {"m": 128 * draw(st.integers(1, 2))}
    else:
        values |= {
            "d": draw(st.sampled_from(["f16", "f32", "i32"])),
            "m": 16 * draw(st.integers(1, 16)),
        }
        values |= {
            "selector": draw(st.integers(0, 3)),
            "max_shift": draw(st.sampled_from([0, 8, 16, 32])),
        }
        values |= {"saturate": draw(flag)} if kind == "i8" else {}
    return InstructionDescriptor(kind=kind, **values)


@given(descriptions())
@settings(max_examples=300, deadline=None)
def test_what_is_encoded_is_decoded(description):
    bits = instruction_descriptor(description)
    assert 0 <= bits < 1 << 32
    assert decode_instruction_descriptor(bits, description.kind) == description


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(OPERAND_CODES)))
@settings(max_examples=300, deadline=None)
def test_what_is_decoded_is_encoded(bits, kind):
    try:
        description = decode_instruction_descriptor(bits, kind)
    except ValueError as error:
        assert f"idesc is {bits:#010x}" in str(error)
    else:
        assert instruction_descriptor(description) == bits


#: Bits that the PTX ISA's tables of the descriptor reserve.
RESERVED = {
    **dict.fromkeys(("f16", "tf32", "f8f6f4"), {3, 6, 23, 29}),
    "i8": {6, 13, 14, 23, 29},
    "mxf8f6f4": {0, 1, 3, 6, 24, 25, 26, 31},
    **dict.fromkeys(("mxf4", "mxf4nvf4"), {0, 1, 3, 6, 12, 15, 16, 24, 25, 26}),
}


@pytest.mark.parametrize("kind", RESERVED)
def test_reserved_bits(kind):
    def is_reserved(bit):
        try:
            decode_instruction_descriptor(1 << bit, kind)
        except ValueError as error:
            return f"bits {bit} are reserved" in str(error)
        return False

    assert set(filter(is_reserved, range(40))) == RESERVED[kind] | set(range(32, 40))


@pytest.mark.parametrize(
    ("bits", "kind", "text"),
    [
        (1 << 23, "f16", "bits 23 are reserved in the descriptor of kind f16 and must be 0"),
        (1 << 3 | 1 << 6, "tf32", "bits 3, 6 are reserved"),
        (1 << 13, "i8", "bits 13 are reserved"),
        (1 << 15, "mxf4", "bits 15 are reserved"),
        (1 << 32, "f16", "bits 32 are reserved"),
        (2 << 7, "f16", "its field a is 2, and kind f16 has 0 (f16), 1 (bf16)"),
        (2 << 10, "f8f6f4", "its field b is 2, and kind f8f6f4 has 0 (e4m3), 1 (e5m2), 3 (e2m3)"),
        (3 << 4, "f16", "its field d is 3, and kind f16 has 0 (f16), 1 (f32), 2 (i32)"),
    ],
)
def test_bits_that_say_nothing(bits, kind, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        decode_instruction_descriptor(bits, kind)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"kind": "f32"}, "kind is 'f32': use one of f16, tf32, f8f6f4, i8, mxf8f6f4, mxf4"),
        (
            {"a": "e4m3"},
            "a is 'e4m3': the instruction descriptor of kind f16 has a code for 'f16', 'bf16'",
        ),
        (
            {"n": 12},
            "n is 12: its field in the instruction descriptor of kind f16 holds multiples of 8 up",
        ),
        (
            {"m": 512},
            "of kind f16 holds multiples of 16 up to 496",
        ),
        (
            {"saturate": True},
            "saturate is True: the instruction descriptor of kind f16 does not have",
        ),
        (
            {"scale_type": "ue8m0"},
            "scale_type is 'ue8m0': the instruction descriptor of kind f16 does",
        ),
        (
            {"max_shift": 4},
            "max_shift is 4: the instruction descriptor of kind f16 has a code for 0, 8",
        ),
        (
            {"kind": "mxf4", "a": "e2m1", "b": "e2m1", "m": 64, "scale_type": "ue8m0"},
            "holds multiples of 128 up to 384",
        ),
        ({"kind": "mxf4", "a": "e2m1", "b": "e2m1", "a_major": "MN"}, "a_major is 'MN'"),
    ],
)
def test_values_without_a_field(values, text):
    plain = {"kind": "f16", "m": 128, "n": 128, "a": "f16", "b": "f16"}
    with pytest.raises(ValueError, match=re.escape(text)):
        instruction_descriptor(InstructionDescriptor(**plain | values))


@pytest.mark.parametrize("kind", ["f16", "f8f6f4", "i8", "mxf8f6f4"])
def test_no_bit_is_a_description_and_a_sign_is_none(kind):
    found = decode_instruction_descriptor(0, kind)
    assert (found.kind, found.m, found.n) == (kind, 0, 0)
    with pytest.raises(ValueError, match="are reserved"):
        decode_instruction_descriptor(-1, kind)
