//! What a real llama-server reserves, against the sizes of the same file.
#![allow(clippy::disallowed_methods, reason = "the environment names the engine")]

use std::path::PathBuf;

use crate::accuracy::live::{self, NETWORKS, Setting};
use flock::base::Dtype;

/// Real, because the figures are the engine's own; small, because it runs every time.
#[test]
fn sizes_match_the_engine() {
    let named = |variable: &str| {
        std::env::var(variable).unwrap_or_else(|_| {
            panic!(
                "{variable} is not set: run scripts/test, or `scripts/engine server|model` and export what it prints"
            )
        })
    };
    let (server, real) = (named("FLOCK_TEST_LLAMA_SERVER"), named("FLOCK_TEST_MODEL"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = [
        Setting { context: 512, slots: 1, kv: None, flash: true },
        Setting { context: 2048, slots: 3, kv: Some(Dtype::Q8_0), flash: true },
        Setting { context: 1024, slots: 2, kv: None, flash: false },
    ];
    let small = NETWORKS.iter().map(|network| {
        let (path, variant) = live::write(folder.path(), network);
        (network.0, path, variant)
    });
    let real = std::iter::once(("SmolLM2", PathBuf::from(&real), live::real_model(&real)));
    for (name, path, variant) in small.chain(real) {
        for setting in &settings {
            let found = live::run(&server, &path, &variant, setting).expect("the server reserves its memory");
            let case = format!("{name}, {setting}");
            assert!(found.model.error().abs() <= 0.1, "{case}: model {:+.2} %", found.model.error());
            assert!(found.kv.error() == 0.0, "{case}: KV {:?}", found.kv);
            if setting.flash {
                assert!(found.compute.error().abs() <= 1.5, "{case}: compute {:+.2} %", found.compute.error());
            }
        }
    }
}
