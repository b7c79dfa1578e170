//! `flock validate`

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::base::{Diagnostic, Tree, TreeEntry, sort_diagnostics};
use crate::cli::context::{Config, Context};
use crate::cli::exit::ExitCode;
use crate::cli::failure::Failure;
use crate::config::{CLUSTER_FILE, Loaded, MAX_FILE_BYTES, ids};
use crate::edge::DiskWeights;
use crate::plan::{self, Limits};
use crate::ports::Repository as _;
use crate::reconcile;
use crate::report::{self, Fit, Validation};

/// Check the config repository, without network.
///
/// Reports every error of every file in one run.
///
/// With --stdin, an editor's text is checked in the place of one file: PATH, or cluster.kdl. The other files are read
/// from the repository, and only what is about this one is reported. Outside a repository a file other than
/// cluster.kdl is checked by itself, without what it refers to elsewhere.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// Only report what is about these files (the whole repository is read all the same, and must be valid)
    paths: Vec<PathBuf>,
    /// Check standard input in the place of PATH (default: cluster.kdl)
    #[arg(long)]
    stdin: bool,
    /// What makes the config invalid besides errors
    #[arg(long, value_enum, value_name = "KIND")]
    deny: Option<Deny>,
    /// Also say whether it fits the hardware of this inventory; exit 4 if not
    #[arg(long, value_name = "FILE", conflicts_with = "stdin")]
    inventory: Option<PathBuf>,
    /// Text for people, JSON for programs, annotations, SARIF or a table for code hosts
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: FindingsFormat,
}

/// `--deny`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Deny {
    /// Warnings too
    Warnings,
}

/// `--format` of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum FindingsFormat {
    /// For people
    #[default]
    Text,
    /// For programs; the shape is documented and stable
    Json,
    /// Annotations of GitHub Actions
    Github,
    /// SARIF 2.1.0
    Sarif,
    /// A table for a comment
    Markdown,
}

/// What was checked.
struct Checked {
    tree: Tree,
    loaded: Loaded,
    /// What is reported.
    diagnostics: Vec<Diagnostic>,
    /// Whether what is not reported has errors or warnings too.
    hidden: (bool, bool),
}

/// Runs the command.
pub async fn run(context: &Context, args: &ValidateArgs) -> Result<ExitCode, Failure> {
    let Checked { tree, loaded, mut diagnostics, hidden } =
        if args.stdin { standard_input(context, args).await? } else { repository(context, args).await? };
    let (mut fit, mut unfit) = (None, Vec::new());
    if let Some(path) = &args.inventory {
        (fit, unfit) = fitted(context, &tree, loaded, path, &mut diagnostics).await?;
    }
    let mut answer = Validation::of(&diagnostics);
    let warned = answer.warning_count > 0 || hidden.1;
    answer.valid = answer.valid && !hidden.0 && (args.deny.is_none() || !warned);
    answer.fit = fit;
    let fits = answer.fit.as_ref().is_none_or(|fit| fit.fits);
    let text = match args.format {
        FindingsFormat::Json => report::json(&answer),
        FindingsFormat::Text => report::validation_text(&answer, &tree, &context.style()),
        FindingsFormat::Github => {
            report::github_annotations(&[diagnostics.as_slice(), &unfit].concat(), &hosted_folder(&context.directory))
        }
        FindingsFormat::Sarif => {
            report::sarif(&[diagnostics.as_slice(), &unfit].concat(), &hosted_folder(&context.directory))
        }
        FindingsFormat::Markdown => {
            let verdict = match (answer.valid, fits, &answer.fit) {
                (false, ..) => "invalid",
                (_, false, _) => "does not fit",
                (_, _, Some(_)) => "valid, and fits",
                _ => "valid",
            };
            report::findings_markdown(&[diagnostics.as_slice(), &unfit].concat(), verdict)
        }
    };
    context.printer.data(&text)?;
    Ok(match (answer.valid, fits) {
        (false, _) => ExitCode::Invalid,
        (_, false) => ExitCode::Infeasible,
        _ => ExitCode::Success,
    })
}

/// Adds what the weights say that the lock or this machine has: a context may be longer than they were trained for.
async fn look_at_weights(context: &Context, tree: &Tree, loaded: &mut Loaded) {
    let Some(desired) = &loaded.desired else { return };
    let lock = reconcile::read_lock(tree).unwrap_or_default();
    let root = context.directory.to_string_lossy();
    loaded.diagnostics.extend(reconcile::contexts_too_long(desired, &lock, &DiskWeights::new(), &root).await);
    sort_diagnostics(&mut loaded.diagnostics);
}

async fn repository(context: &Context, args: &ValidateArgs) -> Result<Checked, Failure> {
    let (tree, mut loaded) = context.load()?;
    look_at_weights(context, &tree, &mut loaded).await;
    let whole = Validation::of(&loaded.diagnostics);
    let hidden = (whole.error_count > 0, whole.warning_count > 0);
    let mut diagnostics = loaded.diagnostics.clone();
    if !args.paths.is_empty() {
        let wanted = args.paths.iter().map(|path| relative(&tree, path)).collect::<Result<Vec<_>, _>>()?;
        diagnostics.retain(|diagnostic| {
            diagnostic
                .file
                .as_ref()
                .is_none_or(|file| wanted.iter().any(|path| file == path || file.starts_with(&format!("{path}/"))))
        });
    }
    Ok(Checked { tree, loaded, diagnostics, hidden })
}

/// Findings that a file outside any repository cannot be blamed for.
const ABOUT_OTHERS: &[&str] =
    &[ids::NO_CLUSTER, ids::UNKNOWN_NAME, ids::UNKNOWN_PRIORITY, ids::MISSING_FILE, ids::NO_MATCH];

async fn standard_input(context: &Context, args: &ValidateArgs) -> Result<Checked, Failure> {
    let name = match args.paths.as_slice() {
        [] => CLUSTER_FILE.to_owned(),
        [path] => within(context, path)?,
        _ => return Err(Failure::new(ExitCode::Usage, "standard input is one document: name one file, or none")),
    };
    let mut bytes = Vec::new();
    io::stdin()
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::new(ExitCode::Failure, format!("cannot read standard input: {error}")))?;
    let mut tree = context.repository().tree()?;
    let alone = name != CLUSTER_FILE && tree.get(CLUSTER_FILE).is_none();
    if alone {
        tree = Tree::new();
    }
    tree.insert(name.clone(), TreeEntry::File(bytes));
    let mut loaded = context.check(&tree, Some(&name));
    look_at_weights(context, &tree, &mut loaded).await;
    let mut diagnostics = loaded.diagnostics.clone();
    diagnostics.retain(|one| match &one.file {
        Some(file) => *file == name && !(alone && ABOUT_OTHERS.contains(&one.id)),
        None => !alone,
    });
    Ok(Checked { tree, loaded, diagnostics, hidden: (false, false) })
}

/// The name in the repository of a file that may not be there yet.
fn within(context: &Context, path: &Path) -> Result<String, Failure> {
    let outside = || {
        Failure::new(ExitCode::Usage, format!("{} is not in the config repository", path.display()))
            .hint("name the file from the folder of -C")
    };
    let relative = if path.is_absolute() {
        let root = context.directory.canonicalize().map_err(|_| outside())?;
        let folder = path.parent().and_then(|folder| folder.canonicalize().ok()).ok_or_else(outside)?;
        folder.strip_prefix(root).map_err(|_| outside())?.join(path.file_name().ok_or_else(outside)?)
    } else {
        path.to_owned()
    };
    let mut parts = Vec::new();
    for part in relative.components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::Normal(part) => parts.push(part.to_str().ok_or_else(outside)?.to_owned()),
            _ => return Err(outside()),
        }
    }
    if parts.is_empty() { Err(outside()) } else { Ok(parts.join("/")) }
}

/// Whether a valid config fits an inventory, and what does not as findings. What makes a plan impossible is added to
/// the findings.
async fn fitted(
    context: &Context,
    tree: &Tree,
    loaded: Loaded,
    path: &Path,
    found: &mut Vec<Diagnostic>,
) -> Result<(Option<Fit>, Vec<Diagnostic>), Failure> {
    // Read first: a broken inventory is told whatever the config is.
    let facts = context.read_inventory(path)?;
    let (Some(desired), Some(digest), Ok(lock)) = (loaded.desired, loaded.config_digest, reconcile::read_lock(tree))
    else {
        return Ok((None, Vec::new()));
    };
    let digest = reconcile::digest_with_lock(&digest, &desired, &lock);
    let standing = context.repository().standing()?;
    let config = Config { desired, lock, digest, standing, warnings: Vec::new() };
    let limits = Limits::default();
    let planned = match context.try_plan(&config, &facts, &limits, &std::collections::BTreeSet::new()).await? {
        Ok(planned) => planned,
        Err(problems) => {
            // The same finding, as a warning, says that no plan can be made yet.
            found.retain(|one| !problems.iter().any(|other| (other.id, &other.message) == (one.id, &one.message)));
            found.extend(problems);
            sort_diagnostics(found);
            return Ok((None, Vec::new()));
        }
    };
    let mut unplaced = planned.plan.unplaced;
    // Whether it fits is asked of what the config wants in the end, whatever a window holds until then.
    for missing in &mut unplaced {
        let same = planned.placement.unplaced.iter().find(|one| one.model == missing.model);
        missing.required |= same.is_some_and(|one| one.required);
    }
    let fits = !unplaced.iter().any(|missing| missing.required);
    let unreachable = plan::unreachable_nodes(&config.desired, &facts.inventory, &limits);
    let unfit = report::unfit(&unplaced, &config.desired);
    let placed = planned.plan.instances.iter().filter(|instance| !instance.is_worker()).count();
    let fit = Fit { fits, placed, unplaced, unreachable: unreachable.into_iter().collect() };
    Ok((Some(fit), unfit))
}

/// A path of the command line as the tree names it; one that names nothing is a mistake worth telling.
fn relative(tree: &Tree, path: &Path) -> Result<String, Failure> {
    let text = path.to_string_lossy();
    let text = text.trim_start_matches("./").trim_end_matches('/').to_owned();
    let known = tree.iter().any(|(entry, _)| entry == text || entry.starts_with(&format!("{text}/")));
    if known { Ok(text) } else { Err(Failure::new(ExitCode::Usage, format!("{text} is not in the config repository"))) }
}

/// The folder of the config repository as a code host names files: below the checkout of the workflow, or else below
/// the current folder.
fn hosted_folder(directory: &Path) -> String {
    let Ok(full) = directory.canonicalize() else { return String::new() };
    let checkout = std::env::var_os("GITHUB_WORKSPACE").and_then(|root| PathBuf::from(root).canonicalize().ok());
    let here = std::env::current_dir().and_then(|here| here.canonicalize()).ok();
    let below = checkout.into_iter().chain(here).find_map(|root| full.strip_prefix(root).ok().map(Path::to_owned));
    below.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
}
