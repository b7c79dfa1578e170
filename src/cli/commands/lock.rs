//! `flock lock`

use std::collections::BTreeSet;

use clap::Args;

use crate::base::{Diagnostic, Severity};
use crate::cli::args::{Format, FormatArg};
use crate::cli::context::Context;
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::config::{self, Desired, Source, near_miss};
use crate::ports::Repository as _;
use crate::reconcile::{self, Update};
use crate::report::{self, LockDocument, Style};
use crate::weights::Lock;

/// Pin what models have on the hub in flock.lock.
///
/// Reads the repositories that the config names, and the quantisations of owners that `weights-from` trusts, from their
/// listings and headers alone. Plans are made from flock.lock, without the hub. What is pinned and still what the config
/// says stays as it is; --update takes the newest commits.
#[derive(Debug, Args)]
pub struct LockArgs {
    /// Take the newest commits: of these models, or of all
    #[arg(long, value_name = "MODEL", num_args = 0..)]
    update: Option<Vec<String>>,
    #[command(flatten)]
    format: FormatArg,
}

/// Runs the command.
pub async fn run(context: &Context, args: &LockArgs) -> Result<ExitCode, Failure> {
    let tree = context.repository().tree()?;
    // The lock may be missing or disagree: that is what this command is for.
    let mut loaded = config::load(&tree);
    let old = reconcile::read_lock(&tree);
    loaded.diagnostics.extend(old.as_ref().err().map(|malformed| Diagnostic::clone(malformed)));
    let (Some(desired), Ok(old)) = (loaded.desired, old) else {
        return Err(context.invalid(&tree, &loaded.diagnostics));
    };
    let update = wanted(args, &desired)?;
    let told = |what: &str| context.printer.note(&format!("reading {what}"));
    let hub = context.hub()?;
    let relocked = reconcile::relock(&desired, &old, &update, &hub, &told).await;
    let written = write(context, &tree, &relocked.lock)?;
    if !relocked.findings.is_empty() {
        context.printer.findings(&report::findings_text(&relocked.findings, &tree, &Style::PLAIN));
    }
    let document = LockDocument::of(&relocked, written);
    match args.format.format {
        Format::Json => context.printer.data(&report::json(&document))?,
        Format::Text => context.printer.data(&report::lock_text(&document))?,
    }
    let failed = relocked.findings.iter().any(|found| found.severity == Severity::Error);
    Ok(if failed { ExitCode::Failure } else { ExitCode::Success })
}

/// Whose pins are renewed; a name that is no model on the hub is a mistake.
fn wanted(args: &LockArgs, desired: &Desired) -> Result<Update, Failure> {
    let names = match args.update.as_deref() {
        None => return Ok(Update::Missing),
        Some([]) => return Ok(Update::All),
        Some(names) => names,
    };
    for name in names {
        let Some(model) = desired.models.get(name) else {
            let known: Vec<&String> = desired.models.keys().collect();
            let text = format!("there is no model `{name}`");
            return Err(Failure::new(ExitCode::Usage, text).hint(near_miss(name, &known)));
        };
        let sources = model.source.iter().chain(model.variants.iter().map(|choice| &choice.source));
        if !sources.clone().any(|source| matches!(source.value, Source::Hub { .. })) {
            let text = format!("model `{name}` has no weights on the hub: there is nothing to pin");
            return Err(Failure::new(ExitCode::Usage, text).hint("`hf:owner/name` is on the hub"));
        }
    }
    Ok(Update::Models(names.iter().cloned().collect::<BTreeSet<_>>()))
}

/// Writes the lock unless the file is that already. A lock of nothing is written only where there is one.
fn write(context: &Context, tree: &crate::base::Tree, lock: &Lock) -> Result<bool, Failure> {
    let text = lock.render();
    let known = tree.get(crate::weights::LOCK_FILE);
    let same = match known {
        Some(crate::base::TreeEntry::File(bytes)) => *bytes == text.as_bytes(),
        _ => lock.models.is_empty(),
    };
    if same {
        return Ok(false);
    }
    context.repository().write_lock(&text)?;
    Ok(true)
}
