//! Every row of the table of architectures, read from generated headers.

use crate::accuracy::read;
use crate::headers;

/// Parameters as the table's source counted them without towers, within 0.5 %: the headers are those of the models.
#[test]
fn headers_hold_the_parameters_of_the_published_models() {
    let mut compared = 0;
    // Hundreds of experts are tens of thousands of tensors: one such model is enough here.
    let small = |row: &headers::Row| row.number("experts").unwrap_or(0) <= 64 || row.model() == "Qwen/Qwen3-30B-A3B";
    for row in headers::rows().into_iter().filter(small) {
        let Ok(expected) = row.text("params_b_from_formula").parse::<f64>() else { continue };
        let Some(files) = headers::safetensors(&row, "bf16", 2) else { continue };
        let variant = read(&files);
        assert!(variant.tensors.exact && variant.architecture.known, "{} {:?}", row.model(), variant.notes);
        let language = variant.tensors.total_bytes - variant.tensors.vision_bytes;
        let billions = language as f64 / 2e9;
        assert!((billions - expected).abs() < 0.005 * expected + 0.002, "{}: {billions} of {expected}", row.model());
        compared += 1;
        let Some(files) = headers::gguf(&row, "Q8_0", "m", 1) else { continue };
        let same = read(&files);
        assert!(same.architecture.known, "{}", row.model());
        // A projector is a file of its own, and GGUF keeps no second copy of a tied head.
        let text = variant.tensors.parameters - variant.tensors.vision_bytes / 2;
        let ratio = same.tensors.parameters as f64 / text as f64;
        assert!((ratio - 1.0).abs() < 0.002, "{}: {ratio}", row.model());
        assert_eq!(same.architecture.layers, variant.architecture.layers);
        if row.class().starts_with("Gemma") {
            // llama.cpp has no window for Mistral and Phi.
            assert_eq!(same.architecture.sliding, variant.architecture.sliding, "{}", row.model());
        }
    }
    assert!(compared >= 55, "{compared}");
}
