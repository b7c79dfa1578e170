//! Whether two sets of weights are of one network: a quantisation that is taken for another model's must be.

use super::{Architecture, PerLayer};

/// Rows that makers add to a vocabulary so that it divides well; more than that is another vocabulary.
const PADDING: u32 = 512;

/// What differs between a model and something that claims to be its quantisation; `None` where nothing does.
///
/// Formats count latent attention's heads differently (GGUF: one shared head), and name architectures differently, so
/// neither is compared.
pub fn difference(base: &Architecture, other: &Architecture) -> Option<String> {
    let mut found = Vec::new();
    let mut compare = |what: &str, base: u32, other: u32| {
        if base != other {
            found.push(format!("{other} {what} instead of {base}"));
        }
    };
    compare("layers", base.layers, other.layers);
    compare("hidden width", base.hidden, other.hidden);
    compare("experts", base.experts.unwrap_or(0), other.experts.unwrap_or(0));
    if base.vocab.abs_diff(other.vocab) >= PADDING {
        compare("tokens of vocabulary", base.vocab, other.vocab);
    }
    if base.layers == other.layers {
        let mut heads = |what: &str, base_heads: &PerLayer, other_heads: &PerLayer| {
            let differs = (0..base.layers as usize).find(|layer| base_heads.at(*layer) != other_heads.at(*layer));
            if let Some(layer) = differs {
                compare(what, base_heads.at(layer), other_heads.at(layer));
            }
        };
        heads("heads", &base.heads, &other.heads);
        if base.mla.is_none() && other.mla.is_none() {
            heads("KV heads", &base.kv_heads, &other.kv_heads);
        }
    }
    (!found.is_empty()).then(|| found.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::samples::architecture;

    #[test]
    fn the_same_network_in_another_coat() {
        let base = architecture(4, 256, 8, 2);
        let mut other = architecture(4, 256, 8, 2);
        other.name = "llama".to_owned();
        other.vocab = base.vocab + 256;
        other.heads = PerLayer::Each(vec![8; 4]);
        other.trained_context = Some(1);
        assert_eq!(difference(&base, &other), None);
    }

    #[test]
    fn every_difference_is_named() {
        let base = architecture(4, 256, 8, 2);
        type Change = fn(&mut Architecture);
        let changes: &[(Change, &str)] = &[
            (|a| a.layers = 5, "5 layers instead of 4"),
            (|a| a.hidden = 128, "128 hidden width instead of 256"),
            (|a| a.heads = PerLayer::All(4), "4 heads instead of 8"),
            (|a| a.kv_heads = PerLayer::Each(vec![2, 2, 1, 2]), "1 KV heads instead of 2"),
            (|a| a.vocab += 512, "1512 tokens of vocabulary instead of 1000"),
            (|a| a.experts = Some(8), "8 experts instead of 0"),
        ];
        for (change, text) in changes {
            let mut other = base.clone();
            change(&mut other);
            assert_eq!(difference(&base, &other).as_deref(), Some(*text));
        }
        let mut other = base.clone();
        (other.layers, other.hidden) = (5, 1);
        assert_eq!(difference(&base, &other).as_deref(), Some("5 layers instead of 4, 1 hidden width instead of 256"));
    }
}
