// The library's tables, written by `make goldens`.

export const DTYPES = {
  "u8": {"bits": 8, "sharedBits": 8, "words": 1, "maxInnerBox": 256, "tensorMap": "UINT8"},
  "i8": {"bits": 8, "sharedBits": 8, "words": 1, "maxInnerBox": 256, "tensorMap": "UINT8"},
  "u16": {"bits": 16, "sharedBits": 16, "words": 1, "maxInnerBox": 256, "tensorMap": "UINT16"},
  "i16": {"bits": 16, "sharedBits": 16, "words": 1, "maxInnerBox": 256, "tensorMap": "UINT16"},
  "u32": {"bits": 32, "sharedBits": 32, "words": 1, "maxInnerBox": 256, "tensorMap": "UINT32"},
  "i32": {"bits": 32, "sharedBits": 32, "words": 1, "maxInnerBox": 256, "tensorMap": "INT32"},
  "u64": {"bits": 64, "sharedBits": 64, "words": 1, "maxInnerBox": 256, "tensorMap": "UINT64"},
  "i64": {"bits": 64, "sharedBits": 64, "words": 1, "maxInnerBox": 256, "tensorMap": "INT64"},
  "f16": {"bits": 16, "sharedBits": 16, "words": 1, "maxInnerBox": 256, "tensorMap": "FLOAT16"},
  "bf16": {"bits": 16, "sharedBits": 16, "words": 1, "maxInnerBox": 256, "tensorMap": "BFLOAT16"},
  "f32": {"bits": 32, "sharedBits": 32, "words": 1, "maxInnerBox": 256, "tensorMap": "FLOAT32"},
  "f64": {"bits": 64, "sharedBits": 64, "words": 1, "maxInnerBox": 256, "tensorMap": "FLOAT64"},
  "tf32": {"bits": 32, "sharedBits": 32, "words": 1, "maxInnerBox": 256, "tensorMap": "TFLOAT32"},
  "f32_ftz": {"bits": 32, "sharedBits": 32, "words": 1, "maxInnerBox": 256, "tensorMap": "FLOAT32_FTZ"},
  "tf32_ftz": {"bits": 32, "sharedBits": 32, "words": 1, "maxInnerBox": 256, "tensorMap": "TFLOAT32_FTZ"},
  "c64": {"bits": 64, "sharedBits": 64, "words": 2, "maxInnerBox": 128, "tensorMap": "FLOAT32"},
  "c128": {"bits": 128, "sharedBits": 128, "words": 2, "maxInnerBox": 128, "tensorMap": "FLOAT64"},
  "e4m3": {"bits": 8, "sharedBits": 8, "words": 1, "maxInnerBox": 256, "tensorMap": "UINT8"},
  "e5m2": {"bits": 8, "sharedBits": 8, "words": 1, "maxInnerBox": 256, "tensorMap": "UINT8"},
  "ue8m0": {"bits": 8, "sharedBits": 8, "words": 1, "maxInnerBox": 256, "tensorMap": "UINT8"},
  "ue4m3": {"bits": 8, "sharedBits": 8, "words": 1, "maxInnerBox": 256, "tensorMap": "UINT8"},
  "e2m1": {"bits": 4, "sharedBits": 4, "words": 1, "maxInnerBox": 256, "tensorMap": "16U4_ALIGN8B"},
  "e2m1_unpacked": {"bits": 4, "sharedBits": 8, "words": 1, "maxInnerBox": 128, "tensorMap": "16U4_ALIGN16B"},
  "e2m3": {"bits": 6, "sharedBits": 8, "words": 1, "maxInnerBox": 128, "tensorMap": "16U6_ALIGN16B"},
  "e3m2": {"bits": 6, "sharedBits": 8, "words": 1, "maxInnerBox": 128, "tensorMap": "16U6_ALIGN16B"},
};

export const SWIZZLES = {
  "NONE": {"span": 16, "atom": 16, "alignment": 128},
  "B32": {"span": 32, "atom": 16, "alignment": 256},
  "B64": {"span": 64, "atom": 16, "alignment": 512},
  "B128": {"span": 128, "atom": 16, "alignment": 1024},
  "B128_ATOM_32B": {"span": 128, "atom": 32, "alignment": 512},
  "B128_ATOM_64B": {"span": 128, "atom": 64, "alignment": 256},
};

export const SHARED = {
  "sm_90a": 232448,
  "sm_100a": 232448,
  "sm_103a": 232448,
  "sm_107a": 232448,
  "sm_110a": 232448,
  "sm_120a": 101376,
  "sm_121a": 101376,
};

export const LIMITS = {
  "rank": 5,
  "box": 256,
  "copies": 64,
  "stages": 29056,
};

export const UNPACKED_SWIZZLES = {
  "NONE": true,
  "B128": true,
  "B128_ATOM_32B": true,
};
