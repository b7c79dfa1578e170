//! The config against flock.lock: what is pinned, what is missing, what disagrees; and the weights a lock pins.

use std::collections::BTreeSet;

use crate::base::{Diagnostic, Digest, Place, Spanned, Tree, TreeEntry};
use crate::config::{Desired, Model, Source};
use crate::inventory::FetchFile;
use crate::placement::{Candidate, Origin, SourceProblem};
use crate::weights::{LOCK_FILE, Lock, LockError, LockedModel, LockedSource, MAX_LOCK_BYTES};

use super::sources::{DISAGREES, MALFORMED, NOT_LOCKED, RENAMED, STALE_ENTRY, revision};

/// Reads the lock of a tree; a tree without one has nothing pinned.
///
/// # Errors
/// A finding at the line that no flock wrote.
pub fn read_lock(tree: &Tree) -> Result<Lock, Box<Diagnostic>> {
    let refused = |error: LockError| {
        let mut place = Place::start_of(LOCK_FILE);
        (place.line, place.column, place.end_line, place.end_column) =
            (error.line, error.column, error.line, error.column);
        Box::new(Diagnostic::error(MALFORMED, &place, error.message).hint(error.hint))
    };
    let whole = |message: String, hint| refused(LockError { line: 1, column: 1, message, hint });
    match tree.get(LOCK_FILE) {
        None => Ok(Lock::default()),
        Some(TreeEntry::File(bytes)) => match std::str::from_utf8(bytes) {
            Ok(text) => Lock::parse(text).map_err(refused),
            Err(error) => Err(whole(format!("it is not UTF-8: {error}"), "restore it from git")),
        },
        Some(TreeEntry::Present { size }) if *size <= MAX_LOCK_BYTES => {
            Err(whole("it is a link to a file that is no lock in that commit".to_owned(), "commit the file itself"))
        }
        Some(TreeEntry::Present { size }) => {
            let text = format!("it has {size} bytes; at most {MAX_LOCK_BYTES} are read");
            Err(whole(text, "delete it and run `flock lock`, which writes it anew"))
        }
        Some(TreeEntry::Refused(reason)) => Err(whole(format!("it cannot be read: {reason}"), "restore it from git")),
    }
}

/// What a model's weights on the hub are by the lock.
pub(super) enum Pinned<'l> {
    /// The config names nothing on the hub.
    Nothing,
    /// The lock has what the config says.
    Locked(&'l LockedModel),
    /// The lock has nothing of this model.
    Missing(SourceProblem),
    /// The config says something else.
    Differs(SourceProblem),
}

/// The sources of a model that are on the hub, each once, as the config writes them.
pub(super) fn hub_sources(model: &Model) -> Vec<&Spanned<Source>> {
    let explicit = model.variants.iter().map(|choice| &choice.source);
    let all = model.source.iter().filter(|_| model.variants.is_empty()).chain(explicit);
    let mut seen = BTreeSet::new();
    all.filter(|source| matches!(source.value, Source::Hub { .. }) && seen.insert(&source.value)).collect()
}

/// The owners whose quantisations are looked for. A list of variants stands instead of looking.
pub(super) fn owners(model: &Model) -> Vec<String> {
    let on_hub = model.source.as_ref().is_some_and(|source| matches!(source.value, Source::Hub { .. }));
    if !model.variants.is_empty() || !on_hub {
        return Vec::new();
    }
    let mut owners: Vec<String> = Vec::new();
    for owner in &model.extras.weights_from {
        if !owners.iter().any(|known| known.eq_ignore_ascii_case(&owner.value)) {
            owners.push(owner.value.clone());
        }
    }
    owners
}

/// Holds a model against the lock.
pub(super) fn pinned<'l>(model: &Model, lock: &'l Lock) -> Pinned<'l> {
    let wanted: Vec<String> = hub_sources(model).iter().map(|source| source.value.to_string()).collect();
    let Some(first) = wanted.first() else { return Pinned::Nothing };
    let problem = |id, text: String, hint: &str| SourceProblem { id, text, hint: Some(hint.to_owned()) };
    let Some(known) = lock.models.get(&model.name.value) else {
        let hint = "run `flock lock`, which reads it from the hub and pins it, and commit flock.lock";
        return Pinned::Missing(problem(NOT_LOCKED, format!("{first} is not in flock.lock"), hint));
    };
    let differs = |text| {
        let hint = "run `flock lock`, which resolves what changed and keeps every other pin, and commit flock.lock";
        Pinned::Differs(problem(DISAGREES, text, hint))
    };
    let has: Vec<&str> = known.named().map(|source| source.source.as_str()).collect();
    if let Some(new) = wanted.iter().find(|source| !has.contains(&source.as_str())) {
        let other = has.iter().find(|source| !wanted.iter().any(|wanted| wanted == *source));
        let other = other.map(|other| format!(", and {other} instead")).unwrap_or_default();
        return differs(format!("flock.lock does not have {new}{other}"));
    }
    if let Some(old) = has.iter().find(|source| !wanted.iter().any(|wanted| wanted == *source)) {
        return differs(format!("flock.lock has {old}, which the config no longer names"));
    }
    let lower = |owners: &[String]| owners.iter().map(|owner| owner.to_ascii_lowercase()).collect::<BTreeSet<_>>();
    let (wanted, has) = (owners(model), &known.weights_from);
    if lower(&wanted) != lower(has) {
        let shown = |owners: &[String]| match owners {
            [] => "nobody".to_owned(),
            owners => owners.join(", "),
        };
        return differs(format!(
            "flock.lock has quantisations from {}, and `weights-from` trusts {}",
            shown(has),
            shown(&wanted)
        ));
    }
    // Whoever may change the lock may not choose whose weights run: that is the config's.
    let trusted = |source: &LockedSource| wanted.iter().any(|owner| owner.eq_ignore_ascii_case(source.owner()));
    let base = known.source(first).map(|base| &base.repository);
    for source in known.sources.iter().filter(|source| source.quantised_from.is_some()) {
        let name = &source.repository;
        if !trusted(source) {
            return differs(format!(
                "flock.lock has {name} as a quantisation, and `weights-from` does not trust its owner"
            ));
        }
        if source.quantised_from.as_ref() != base {
            return differs(format!("flock.lock has {name} as a quantisation of something else than {first}"));
        }
    }
    let pins = hub_sources(model).into_iter().map(|source| (source, known.source(&source.value.to_string())));
    for (source, pin) in pins {
        if let Some(pin) = pin.filter(|pin| !is_at_revision(&source.value, pin)) {
            return differs(format!("flock.lock has {} at commit {}", source.value, pin.commit));
        }
        if let (Some((repository, new)), Some(pin)) = (pin.and_then(|pin| other_name(source, pin)), pin)
            && !pin.owner().eq_ignore_ascii_case(repository.split('/').next().unwrap_or_default())
        {
            let text = format!("flock.lock has weights of {} for {repository}: another owner's", pin.repository);
            let hint = format!("run `flock lock --update`; if the hub forwards the name to there, write `{new}`");
            return Pinned::Differs(problem(DISAGREES, text, &hint));
        }
    }
    Pinned::Locked(known)
}

/// Whether a pin is at the commit that the config names, where it names one.
pub(super) fn is_at_revision(source: &Source, pin: &LockedSource) -> bool {
    let Source::Hub { revision: Some(revision), .. } = source else { return true };
    let commit = revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit());
    !commit || revision.eq_ignore_ascii_case(&pin.commit)
}

/// The repository that the config names and the source with the pin's in its place, where those are two.
fn other_name<'s>(source: &'s Spanned<Source>, pin: &LockedSource) -> Option<(&'s str, String)> {
    let Source::Hub { repository, .. } = &source.value else { return None };
    let new = source.value.to_string().replacen(repository, &pin.repository, 1);
    (!repository.eq_ignore_ascii_case(&pin.repository)).then_some((repository, new))
}

/// What to say of a pin of another repository than the config names: the hub forwards old names.
pub(super) fn renamed(source: &Spanned<Source>, pin: &LockedSource) -> Option<Diagnostic> {
    let (repository, new) = other_name(source, pin)?;
    let text = format!(
        "flock.lock has weights of {} for {repository}: right only if the hub has given it that name",
        pin.repository
    );
    let hint = format!("`flock lock --update` asks the hub; if it says the same, write `{new}`");
    Some(Diagnostic::warning(RENAMED, &source.place, text).hint(hint))
}

/// What the lock lacks (warnings: everything but a plan works) and where it disagrees with the config (errors).
pub fn check_lock(desired: &Desired, lock: &Lock) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for model in desired.models.values() {
        let place = hub_sources(model).first().map_or(&model.name.place, |source| &source.place);
        let text = |problem: &SourceProblem| format!("model `{}`: {problem}", model.name.value);
        let (mut one, problem) = match pinned(model, lock) {
            Pinned::Nothing => continue,
            Pinned::Locked(known) => {
                let pins =
                    hub_sources(model).into_iter().map(|source| (source, known.source(&source.value.to_string())));
                found.extend(pins.filter_map(|(source, pin)| renamed(source, pin?)));
                continue;
            }
            Pinned::Missing(problem) => (Diagnostic::warning(problem.id, place, text(&problem)), problem),
            Pinned::Differs(problem) => (Diagnostic::error(problem.id, place, text(&problem)), problem),
        };
        if let Some(hint) = problem.hint {
            one = one.hint(hint);
        }
        found.push(one);
    }
    let place = Place::start_of(LOCK_FILE);
    let on_hub = |name: &String| desired.models.get(name).is_some_and(|model| !hub_sources(model).is_empty());
    for name in lock.models.keys().filter(|name| !on_hub(name)) {
        let text = format!("model `{name}` is pinned here, and the config does not name it, or no longer from the hub");
        found.push(Diagnostic::warning(STALE_ENTRY, &place, text).hint("`flock lock` removes it"));
    }
    found
}

/// The digest of what a plan is made from: the config's meaning, and what the lock pins for it.
pub fn digest_with_lock(config: &Digest, desired: &Desired, lock: &Lock) -> Digest {
    let pinned =
        desired.models.values().filter_map(|model| Some((&model.name.value, lock.models.get(&model.name.value)?)));
    let pinned: Vec<_> = pinned.filter(|(name, _)| !hub_sources(&desired.models[*name]).is_empty()).collect();
    if pinned.is_empty() { config.clone() } else { Digest::of_json(&(config, pinned)) }
}

/// The weights of one source of a model, best first.
pub(super) fn candidates_of(source: &LockedSource) -> Vec<Candidate> {
    let candidate = |locked: &crate::weights::LockedVariant| {
        let file = |file: &crate::weights::LockedFile| FetchFile {
            name: file.name.clone(),
            size_bytes: file.size_bytes,
            sha256: Some(format!("sha256:{}", file.sha256)),
        };
        let files: Vec<FetchFile> = locked.files.iter().map(file).collect();
        Candidate {
            label: locked.id.clone(),
            source: format!("hf:{}@{}", source.repository, source.commit),
            variant: locked.variant(),
            revision: revision(&files),
            files,
            projector: locked.projector.as_ref().map(file),
            origin: Origin::Hub { repository: source.repository.clone(), commit: source.commit.clone() },
            gated: Some(source.gated),
        }
    };
    source.variants.iter().map(candidate).collect()
}

/// Adds the quantisations that were found to the weights of the named source, best quality first. Of several with one
/// name the first keeps it (the source's own, then owners in the order of their trust), so that another owner at the
/// end of the list renames nothing that runs.
pub(super) fn add_quantised(found: &mut Vec<Candidate>, model: &Model, locked: &LockedModel) {
    for source in locked.quantised(&owners(model)) {
        for mut candidate in candidates_of(source) {
            if found.iter().any(|known| known.label == candidate.label) {
                candidate.label = format!("{}@{}", candidate.label, source.repository);
            }
            found.push(candidate);
        }
    }
    found.sort_by_key(|candidate| candidate.variant.quality.rank());
}
