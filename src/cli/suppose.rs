//! What-if files: read, and applied to what a plan is made from.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::PathBuf;

use crate::base::{Diagnostic, Digest, Severity, Tree, TreeEntry};
use crate::config::{self, MAX_FILE_BYTES, WhatIf};
use crate::ports::Repository;
use crate::reconcile;
use crate::report::{self, Style};

use super::context::{Config, Context, Facts};
use super::exit::ExitCode;
use super::failure::Failure;

/// What-if files that were read without an error.
pub struct WhatIfFiles {
    /// What they change, in their order.
    pub files: Vec<WhatIf>,
    /// Their texts beside the config's, for findings that come later.
    tree: Tree,
}

impl Context {
    /// Reads what-if files against the config of the working tree or of a commit. All errors of all files come in one
    /// run; exit 3.
    pub fn read_what_if(&self, against: Option<&str>, paths: &[PathBuf]) -> Result<WhatIfFiles, Failure> {
        let mut tree = match against {
            Some(revision) => self.repository().committed(revision)?.0,
            None => self.repository().tree()?,
        };
        let mut texts: Vec<(String, Vec<u8>)> = Vec::new();
        for path in paths {
            texts.push((path.to_string_lossy().into_owned(), read(path)?));
        }
        let (files, found) = config::what_if(&tree, &texts);
        // Their lines are shown beside the findings.
        for (shown, bytes) in texts {
            tree.insert(shown, TreeEntry::File(bytes));
        }
        match files {
            Some(files) => Ok(WhatIfFiles { files, tree }),
            None => Err(self.wrong(&tree, &found)),
        }
    }

    /// Config and facts as they would be, with things to know.
    pub fn suppose(
        &self,
        config: &Config,
        facts: &Facts,
        read: &WhatIfFiles,
    ) -> Result<(Config, Facts, Vec<String>), Failure> {
        let supposed = reconcile::suppose(&read.files, &config.desired, &facts.inventory, &config.lock)
            .map_err(|found| self.wrong(&read.tree, &found))?;
        let digest =
            reconcile::digest_with_lock(&Digest::of_json(&supposed.desired), &supposed.desired, &supposed.lock);
        let there: BTreeSet<&str> = supposed.inventory.nodes.iter().map(|node| node.name.as_str()).collect();
        let kept = |name: &String| there.contains(name.as_str());
        let facts = Facts {
            specs: facts.specs.iter().filter(|(name, _)| kept(name)).map(|(n, s)| (n.clone(), s.clone())).collect(),
            leases: Default::default(),
            nodes: Default::default(),
            unreachable: facts
                .unreachable
                .iter()
                .filter(|(name, _)| supposed.desired.nodes.contains_key(*name))
                .map(|(name, why)| (name.clone(), why.clone()))
                .collect(),
            inventory: supposed.inventory,
        };
        let config = Config {
            desired: supposed.desired,
            lock: supposed.lock,
            digest,
            standing: config.standing.clone(),
            warnings: config.warnings.clone(),
        };
        Ok((config, facts, supposed.notes))
    }

    fn wrong(&self, tree: &Tree, found: &[Diagnostic]) -> Failure {
        self.printer.findings(&report::diagnostics_text(found, tree, &Style::PLAIN));
        let errors = found.iter().filter(|one| one.severity == Severity::Error).count();
        Failure::new(ExitCode::Invalid, format!("the what-if file is invalid ({})", report::count(errors, "error")))
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| Failure::new(ExitCode::Failure, format!("cannot read {}: {error}", path.display())))?;
    Ok(bytes)
}
