//! GGML tensor types: how many bytes a block of elements takes.
//!
//! Source: `enum ggml_type` in llama.cpp `ggml/include/ggml.h` and the `block_*` structs of
//! `ggml/src/ggml-common.h`.

/// One tensor type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GgmlType {
    /// The number in the file.
    pub(super) id: u32,
    /// Its name.
    pub(super) name: &'static str,
    /// Elements per block.
    pub(super) elements: u64,
    /// Bytes per block.
    pub(super) bytes: u64,
}

const fn t(id: u32, name: &'static str, elements: u64, bytes: u64) -> GgmlType {
    GgmlType { id, name, elements, bytes }
}

/// Every type that present files may hold.
const TYPES: &[GgmlType] = &[
    t(0, "F32", 1, 4),
    t(1, "F16", 1, 2),
    t(2, "Q4_0", 32, 18),
    t(3, "Q4_1", 32, 20),
    t(6, "Q5_0", 32, 22),
    t(7, "Q5_1", 32, 24),
    t(8, "Q8_0", 32, 34),
    t(9, "Q8_1", 32, 40),
    t(10, "Q2_K", 256, 84),
    t(11, "Q3_K", 256, 110),
    t(12, "Q4_K", 256, 144),
    t(13, "Q5_K", 256, 176),
    t(14, "Q6_K", 256, 210),
    t(15, "Q8_K", 256, 292),
    t(16, "IQ2_XXS", 256, 66),
    t(17, "IQ2_XS", 256, 74),
    t(18, "IQ3_XXS", 256, 98),
    t(19, "IQ1_S", 256, 50),
    t(20, "IQ4_NL", 32, 18),
    t(21, "IQ3_S", 256, 110),
    t(22, "IQ2_S", 256, 82),
    t(23, "IQ4_XS", 256, 136),
    t(24, "I8", 1, 1),
    t(25, "I16", 1, 2),
    t(26, "I32", 1, 4),
    t(27, "I64", 1, 8),
    t(28, "F64", 1, 8),
    t(29, "IQ1_M", 256, 56),
    t(30, "BF16", 1, 2),
    t(34, "TQ1_0", 256, 54),
    t(35, "TQ2_0", 256, 66),
    t(39, "MXFP4", 32, 17),
    t(40, "NVFP4", 64, 36),
    t(41, "Q1_0", 128, 18),
    t(42, "Q2_0", 64, 18),
];

/// A type by its number.
pub(super) fn ggml_type(id: u32) -> Option<GgmlType> {
    TYPES.iter().copied().find(|known| known.id == id)
}

impl GgmlType {
    /// Bytes of a tensor: rows x ceil(columns / block) x block bytes; `None` on overflow.
    pub(super) fn tensor_bytes(self, dimensions: &[u64]) -> Option<u64> {
        let (columns, rows) = dimensions.split_first().unwrap_or((&1, &[]));
        let mut bytes = columns.div_ceil(self.elements).checked_mul(self.bytes)?;
        for count in rows {
            bytes = bytes.checked_mul(*count)?;
        }
        Some(bytes)
    }
}

/// Names of `general.file_type` (llama.cpp `enum llama_ftype`). 1024 is added where it was guessed.
pub(super) fn file_type_name(id: u64) -> Option<&'static str> {
    Some(match id & !1024 {
        0 => "f32",
        1 => "f16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K",
        11 => "Q3_K_S",
        12 => "Q3_K_M",
        13 => "Q3_K_L",
        14 => "Q4_K_S",
        15 => "Q4_K_M",
        16 => "Q5_K_S",
        17 => "Q5_K_M",
        18 => "Q6_K",
        19 => "IQ2_XXS",
        20 => "IQ2_XS",
        21 => "Q2_K_S",
        22 => "IQ3_XS",
        23 => "IQ3_XXS",
        24 => "IQ1_S",
        25 => "IQ4_NL",
        26 => "IQ3_S",
        27 => "IQ3_M",
        28 => "IQ2_S",
        29 => "IQ2_M",
        30 => "IQ4_XS",
        31 => "IQ1_M",
        32 => "bf16",
        36 => "TQ1_0",
        37 => "TQ2_0",
        38 => "mxfp4",
        39 => "nvfp4",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_padded_to_whole_blocks() {
        let q4_k = ggml_type(12).expect("known");
        assert_eq!(q4_k.tensor_bytes(&[4096, 14336]), Some(4096 / 256 * 144 * 14336));
        assert_eq!(ggml_type(8).expect("known").tensor_bytes(&[33, 2]), Some(2 * 2 * 34));
        assert_eq!(ggml_type(28).expect("known").tensor_bytes(&[u64::MAX, 3]), None);
    }
}
