//! `flock init`

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use clap::Args;

use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;

/// What `init` writes; a test proves that it validates without a warning.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("cluster.kdl", include_str!("../templates/cluster.kdl")),
    ("workflows/review.kdl", include_str!("../templates/review.kdl")),
    ("policies/lab.kdl", include_str!("../templates/policy.kdl")),
    (".github/workflows/flock.yml", include_str!("../templates/ci.yml")),
];

/// Write a config repository to begin with.
///
/// cluster.kdl, a workflow, a policy and a CI workflow. Files that exist are never overwritten: then nothing is
/// written at all.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Where to (default: the folder of -C)
    dir: Option<PathBuf>,
}

/// Two clusters of one name on one node would stop each other's models, so the folder names it.
fn cluster_name(root: &std::path::Path) -> String {
    let folder = std::path::absolute(root).ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let usable: String = folder
        .unwrap_or_default()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' })
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(40)
        .collect();
    // The agent keeps its weights beside the clusters' folders, under these names.
    if usable.is_empty() || ["weights", "agents"].contains(&usable.as_str()) { "my-lab".to_owned() } else { usable }
}

/// Runs the command.
pub fn run(context: &Context, args: &InitArgs) -> Result<ExitCode, Failure> {
    let root = args.dir.clone().unwrap_or_else(|| context.directory.clone());
    let there: Vec<&str> =
        FILES.iter().map(|(name, _)| *name).filter(|name| root.join(name).symlink_metadata().is_ok()).collect();
    if !there.is_empty() {
        return Err(Failure::new(
            ExitCode::Failure,
            format!("{} holds {} already; nothing was written", root.display(), there.join(", ")),
        )
        .hint("name an empty folder: flock init DIR"));
    }
    let cluster = cluster_name(&root);
    for (name, text) in FILES {
        let text = text.replace("my-lab", &cluster);
        let path = root.join(name);
        let failed = |error: std::io::Error| {
            Failure::new(ExitCode::Failure, format!("cannot write {}: {error}", path.display()))
        };
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        // create_new: a file that appeared since the look above is not overwritten either.
        let created = OpenOptions::new().write(true).create_new(true).open(&path);
        created.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => {
                Failure::new(ExitCode::Failure, format!("{} appeared meanwhile; not overwritten", path.display()))
            }
            _ => failed(error),
        })?;
        context.printer.data(&format!("wrote {}", path.display()))?;
    }
    let go = if root.as_os_str() == "." { String::new() } else { format!("-C {} ", root.display()) };
    context
        .printer
        .note(&format!("\nNext: put a model into cluster.kdl, then `flock {go}validate`, `flock {go}lock` where a source is on the hub, and `flock {go}plan`. Keep it in git: `git -C {} \
             init`, `git -C {} add -A`, commit; plans name the commit.",
            root.display(),
            root.display()));
    Ok(ExitCode::Success)
}

#[cfg(test)]
mod tests {
    use super::FILES;
    use crate::base::Tree;
    use crate::config;

    #[test]
    fn what_init_writes_validates_without_a_warning() {
        let tree: Tree = FILES.iter().map(|(name, text)| (*name, *text)).collect();
        let loaded = config::load(&tree);
        assert!(loaded.desired.is_some() && loaded.diagnostics.is_empty(), "{:#?}", loaded.diagnostics);
    }
}
