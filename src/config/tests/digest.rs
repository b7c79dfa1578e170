//! The digest follows the meaning, not the writing.

use super::*;
use crate::base::Digest;

const PLAIN: &str = r#"
cluster "lab" { reserve vram="1GiB" }
node "a" address="10.0.0.1" { label "x" "1"; label "y" "2" }
node "b" address="10.0.0.2"
model "m" { source "hf:a/b"; context 4096; place { require label="x" is="1"; require label="y" is="2" } }
"#;

fn digest(files: &[(&str, &str)]) -> Digest {
    let loaded = load(&text_tree(files));
    assert!(errors(&loaded).is_empty(), "{:#?}", errors(&loaded));
    loaded.config_digest.expect("no errors")
}

#[test]
fn writing_does_not_change_it() {
    let written = r#"
// a comment
include "parts/*.kdl"
node "b" \
    address="10.0.0.2"
cluster lab {
    reserve vram="1024MiB" /* the same */
}
"#;
    let part = r##"
model "m" {
    place { require label="y" is="2"; require is="1" label="x" }
    /- context 1
    context 0x1000
    source #"hf:a/b"#
}
node "a" address="10.0.0.1" { label "y" 2; label "x" "1" }
"##;
    assert_eq!(digest(&[("cluster.kdl", PLAIN)]), digest(&[("cluster.kdl", written), ("parts/x.kdl", part)]));
}

#[test]
fn meaning_changes_it() {
    let base = digest(&[("cluster.kdl", PLAIN)]);
    for (from, to) in
        [("4096", "4097"), ("1GiB", "1GB"), ("10.0.0.2", "10.0.0.3"), ("\"lab\"", "\"lab2\""), ("hf:a/b", "hf:a/b@x")]
    {
        assert_ne!(base, digest(&[("cluster.kdl", &PLAIN.replace(from, to))]), "{from}");
    }
}
