//! What every command begins with: the folder, the printer, the config, the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::{Diagnostic, Digest, Severity, Tree, sort_diagnostics};
use crate::config::{self, Desired, Loaded};
use crate::edge::{DiskWeights, FolderRepository, HfHub, HubSettings, SystemClock, SystemRandom};
use crate::inventory::{Inventory, Lease, parse_inventory};
use crate::placement::Candidates;
use crate::plan::{self, Limits, ObservedSpecs, Selection};
use crate::ports::{Node, Repository, RepositoryError, Standing};
use crate::reconcile::{self, Observed, Pipeline, Places, Planned};
use crate::report::{self, Style};
use crate::weights::Lock;

use super::args::Global;
use super::exit::ExitCode;
use super::failure::Failure;
use super::fleet::ClusterFleet;
use super::printer::Printer;
use super::signals::Signals;

/// Largest inventory file that is read; 10,000 nodes take a tenth of it.
const MAX_INVENTORY: u64 = 256 << 20;

/// Settings of one run.
pub struct Context {
    /// The config repository.
    pub directory: PathBuf,
    /// Where words go.
    pub printer: Printer,
    /// Folder with agents for other architectures.
    pub agent_dir: Option<PathBuf>,
    /// Wall time.
    pub clock: SystemClock,
    /// What happens when the process is asked to end.
    pub signals: Arc<Signals>,
}

/// A valid config.
pub struct Config {
    /// The desired state.
    pub desired: Desired,
    /// What flock.lock pins of the hub.
    pub lock: Lock,
    /// Digest of its meaning, and of what is pinned for it.
    pub digest: Digest,
    /// Where the repository stands.
    pub standing: Standing,
    /// Warnings it was loaded with.
    pub warnings: Vec<Diagnostic>,
}

/// The facts a plan is made from.
pub struct Facts {
    /// The inventory.
    pub inventory: Inventory,
    /// Desired instances as the nodes hold them.
    pub specs: ObservedSpecs,
    /// The lease that each node holds now; empty with `--inventory`.
    pub leases: BTreeMap<String, Lease>,
    /// The nodes; empty with `--inventory`.
    pub nodes: BTreeMap<String, Arc<dyn Node>>,
    /// Hints for the nodes that could not be asked.
    pub unreachable: BTreeMap<String, (String, Option<String>)>,
}

impl Facts {
    /// The nodes that answered.
    pub fn reachable(&self) -> BTreeMap<String, Arc<dyn Node>> {
        let answered = self.nodes.iter().filter(|(name, _)| !self.unreachable.contains_key(*name));
        answered.map(|(name, node)| (name.clone(), Arc::clone(node))).collect()
    }

    /// The generation of each of them.
    pub fn generations(&self) -> BTreeMap<String, u64> {
        let answered = self.inventory.nodes.iter().filter(|node| node.reachable);
        answered.map(|node| (node.name.clone(), node.generation)).collect()
    }
}

impl Context {
    /// Takes the global options.
    pub fn new(global: Global, printer: Printer, signals: Arc<Signals>) -> Self {
        Self { directory: global.directory, printer, agent_dir: global.agent_dir, clock: SystemClock, signals }
    }

    /// The config repository.
    pub fn repository(&self) -> FolderRepository {
        FolderRepository::new(self.directory.clone())
    }

    /// Reads and checks the config; invalid is not a failure yet.
    pub fn load(&self) -> Result<(Tree, Loaded), Failure> {
        let tree = self.repository().tree()?;
        let loaded = self.check(&tree, None);
        Ok((tree, loaded))
    }

    /// Checks a config, and its lock against it; `also` is a file that is read whether or not anything includes it.
    pub fn check(&self, tree: &Tree, also: Option<&str>) -> Loaded {
        let mut loaded = config::load_with(tree, also);
        match (reconcile::read_lock(tree), &loaded.desired) {
            (Err(malformed), _) => loaded.diagnostics.push(*malformed),
            (Ok(lock), Some(desired)) => loaded.diagnostics.extend(reconcile::check_lock(desired, &lock)),
            (Ok(_), None) => {}
        }
        if let Some(desired) = &loaded.desired {
            loaded.diagnostics.extend(reconcile::unfetched(desired));
        }
        sort_diagnostics(&mut loaded.diagnostics);
        loaded
    }

    /// The config, or all its errors on the screen and exit 3.
    pub fn config(&self) -> Result<Config, Failure> {
        let (tree, loaded) = self.load()?;
        self.valid(&tree, loaded, || Ok(self.repository().standing()?))
    }

    /// What was loaded as a config that everything can be done with. Its lock must be one, too.
    pub fn valid(
        &self,
        tree: &Tree,
        loaded: Loaded,
        standing: impl FnOnce() -> Result<Standing, Failure>,
    ) -> Result<Config, Failure> {
        let faulty = loaded.diagnostics.iter().any(|found| found.severity == Severity::Error);
        match (loaded.desired, loaded.config_digest, reconcile::read_lock(tree)) {
            (Some(desired), Some(digest), Ok(lock)) if !faulty => {
                let digest = reconcile::digest_with_lock(&digest, &desired, &lock);
                Ok(Config { desired, lock, digest, standing: standing()?, warnings: loaded.diagnostics })
            }
            _ => Err(self.invalid(tree, &loaded.diagnostics)),
        }
    }

    /// The config of a commit; its errors are those of that commit's files.
    pub fn config_of(&self, revision: &str) -> Result<Config, Failure> {
        let (tree, standing) = self.repository().committed(revision).map_err(|error| {
            let known = matches!(error, RepositoryError::NoSuchCommit { .. });
            let failure = Failure::from(error);
            if known { failure.hint("a shallow clone lacks most commits: `git fetch` brings them") } else { failure }
        })?;
        let loaded = self.check(&tree, None);
        self.valid(&tree, loaded, || Ok(standing))
    }

    /// The config for looking and stopping: where it has errors and still says which cluster and which nodes, a
    /// warning and what could be read of it.
    pub fn config_as_far_as_it_goes(&self) -> Result<Config, Failure> {
        let (tree, loaded) = self.load()?;
        // Nobody needs the lock to look and to stop.
        let lock = reconcile::read_lock(&tree).unwrap_or_default();
        if let (Some(desired), Some(digest)) = (loaded.desired, loaded.config_digest) {
            let digest = reconcile::digest_with_lock(&digest, &desired, &lock);
            let standing = self.repository().standing().unwrap_or_default();
            return Ok(Config { desired, lock, digest, standing, warnings: loaded.diagnostics });
        }
        let Some(desired) = loaded.partial.filter(|desired| !desired.nodes.is_empty()) else {
            return Err(self.invalid(&tree, &loaded.diagnostics));
        };
        let errors: Vec<&Diagnostic> = loaded.diagnostics.iter().filter(|d| d.severity == Severity::Error).collect();
        let first = errors.first().map(|error| {
            let place = match (&error.file, error.line) {
                (Some(file), Some(line)) => format!("{file}:{line}: "),
                _ => String::new(),
            };
            format!("; the first: {place}[{}] {}", error.id, error.message)
        });
        self.printer.warning(&format!(
            "the config has {}{}\nwhat could be read of it is used; all errors: {}",
            report::count(errors.len(), "error"),
            first.unwrap_or_default(),
            shell_words(&self.words("validate"))
        ));
        let digest = Digest::of_json(&desired);
        let standing = self.repository().standing().unwrap_or_default();
        Ok(Config { desired, lock, digest, standing, warnings: loaded.diagnostics })
    }

    /// All errors on the screen, and exit 3.
    pub fn invalid(&self, tree: &Tree, diagnostics: &[Diagnostic]) -> Failure {
        self.printer.findings(&report::diagnostics_text(diagnostics, tree, &Style::PLAIN));
        let errors = diagnostics.iter().filter(|d| d.severity == Severity::Error).count();
        Failure::new(ExitCode::Invalid, format!("the config is invalid ({})", report::count(errors, "error")))
    }

    /// The hub, as the environment says.
    pub fn hub(&self) -> Result<HfHub, Failure> {
        Ok(HfHub::from_environment()?)
    }

    /// The nodes of a config.
    pub fn fleet(&self, desired: &Desired) -> ClusterFleet {
        let printer = self.printer;
        let notice = Arc::new(move |text: &str| printer.warning(text));
        ClusterFleet::new(desired, &self.directory, self.agent_dir.clone(), notice)
    }

    /// Facts from the nodes. Those that cannot be asked are reported as they are found out.
    pub async fn ask_nodes(&self, desired: &Desired, only: Option<&BTreeSet<String>>) -> Facts {
        self.facts_of(reconcile::observe(desired, &hub_endpoint(), &self.fleet(desired), &self.clock, only).await)
    }

    /// The same for a plan, which needs to know whether nodes reach the hub.
    pub async fn ask_to_plan(&self, desired: &Desired) -> Facts {
        let hub = hub_endpoint();
        let mut observed = reconcile::observe(desired, &hub, &self.fleet(desired), &self.clock, None).await;
        for note in reconcile::measure_hub(desired, &hub, &mut observed).await {
            self.printer.note(&report::clean(&note));
        }
        self.facts_of(observed)
    }

    /// The same, and the way between nodes and to providers measured where that is not known or is asked for.
    pub async fn ask_and_measure(
        &self,
        desired: &Desired,
        only: Option<&BTreeSet<String>>,
        extent: reconcile::Extent,
    ) -> Facts {
        let hub = hub_endpoint();
        let mut observed = reconcile::observe(desired, &hub, &self.fleet(desired), &self.clock, only).await;
        for note in reconcile::measure(desired, &hub, &mut observed, &SystemRandom, extent).await {
            self.printer.note(&report::clean(&note));
        }
        self.facts_of(observed)
    }

    fn facts_of(&self, observed: Observed) -> Facts {
        let Observed { inventory, specs, leases, failures, nodes, warnings, measured: _ } = observed;
        for warning in &warnings {
            self.printer.warning(warning);
        }
        let unreachable = failures.into_iter().map(|(name, error)| (name, (error.to_string(), error.hint()))).collect();
        Facts { inventory, specs, leases, nodes, unreachable }
    }

    /// Facts from a file, without any network.
    pub fn read_inventory(&self, path: &Path) -> Result<Facts, Failure> {
        let mut bytes = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(MAX_INVENTORY + 1).read_to_end(&mut bytes))
            .map_err(|error| Failure::new(ExitCode::Failure, format!("cannot read {}: {error}", path.display())))?;
        if bytes.len() as u64 > MAX_INVENTORY {
            let text = format!("{} has more than {} bytes", path.display(), MAX_INVENTORY);
            return Err(Failure::new(ExitCode::Invalid, text));
        }
        let text = String::from_utf8(bytes)
            .map_err(|error| Failure::new(ExitCode::Invalid, format!("{} is not UTF-8: {error}", path.display())))?;
        let inventory = parse_inventory(&text)?;
        Ok(Facts {
            inventory,
            specs: BTreeMap::new(),
            leases: BTreeMap::new(),
            nodes: BTreeMap::new(),
            unreachable: BTreeMap::new(),
        })
    }

    /// Candidate weights of every model. The hub is not asked.
    pub async fn candidates(&self, config: &Config, inventory: &Inventory) -> Candidates {
        let printer = self.printer;
        let places = Places {
            inventory,
            lock: &config.lock,
            weights: &DiskWeights::new().telling(move |text| printer.note(&report::clean(text))),
            root: &self.directory.to_string_lossy(),
            digests: true,
        };
        reconcile::find_candidates(&config.desired, &places).await
    }

    /// The pipeline from facts to plan. Weights that cannot be read make it impossible: exit 3.
    pub async fn plan(&self, config: &Config, facts: &Facts, limits: &Limits) -> Result<Planned, Failure> {
        self.plan_draining(config, facts, limits, &BTreeSet::new()).await
    }

    /// The same for a drain of these nodes.
    pub async fn plan_draining(
        &self,
        config: &Config,
        facts: &Facts,
        limits: &Limits,
        drain: &BTreeSet<String>,
    ) -> Result<Planned, Failure> {
        self.try_plan(config, facts, limits, drain).await?.map_err(|problems| self.impossible(&problems))
    }

    /// The same, with an explanation of one model.
    pub async fn plan_explaining(&self, config: &Config, facts: &Facts, model: &str) -> Result<Planned, Failure> {
        let (limits, drain) = (Limits::default(), BTreeSet::new());
        let planned = self.try_plan_explaining(config, facts, &limits, &drain, Some(model)).await?;
        planned.map_err(|problems| self.impossible(&problems))
    }

    /// What makes a plan impossible, on the screen; exit 3.
    fn impossible(&self, problems: &[Diagnostic]) -> Failure {
        for one in problems {
            let place = match (&one.file, one.line, one.column) {
                (Some(file), Some(line), Some(column)) => format!("{file}:{line}:{column}: "),
                _ => String::new(),
            };
            self.printer.error(&format!("{place}[{}] {}", one.id, one.message), one.hint.as_deref());
        }
        Failure::silent(ExitCode::Invalid)
    }

    /// As [`Self::plan_draining`]; what makes a plan impossible is returned and not printed.
    pub async fn try_plan(
        &self,
        config: &Config,
        facts: &Facts,
        limits: &Limits,
        drain: &BTreeSet<String>,
    ) -> Result<Result<Planned, Vec<Diagnostic>>, Failure> {
        self.try_plan_explaining(config, facts, limits, drain, None).await
    }

    async fn try_plan_explaining(
        &self,
        config: &Config,
        facts: &Facts,
        limits: &Limits,
        drain: &BTreeSet<String>,
        question: Option<&str>,
    ) -> Result<Result<Planned, Vec<Diagnostic>>, Failure> {
        let candidates = self.candidates(config, &facts.inventory).await;
        let labels = facts.inventory.nodes.iter().map(|node| (node.name.as_str(), &node.labels)).collect();
        let mut warnings = config::with_labels_of_facts(config.warnings.clone(), &config.desired, &labels);
        warnings.extend(self.foreign(config, facts));
        sort_diagnostics(&mut warnings);
        let pipeline = Pipeline {
            desired: &config.desired,
            config_digest: &config.digest,
            standing: &config.standing,
            inventory: &facts.inventory,
            specs: &facts.specs,
            candidates: &candidates,
            hub: &hub_endpoint(),
            limits,
            drain,
            clock: &self.clock,
            warnings,
            question,
        };
        let problems = pipeline.impossible(facts.inventory.nodes.iter().any(|node| !node.reachable));
        if !problems.is_empty() {
            return Ok(Err(problems));
        }
        let planned = pipeline.run();
        if !planned.findings.is_empty() {
            let text = planned.findings.join("\n  ");
            return Err(Failure::new(
                ExitCode::Failure,
                format!("the placement does not hold what it promises:\n  {text}"),
            )
            .hint("this is a fault of flock; please report it with `flock discover --format json`"));
        }
        Ok(Ok(planned))
    }

    /// A warning where the cluster was last applied from a commit that this repository does not have.
    fn foreign(&self, config: &Config, facts: &Facts) -> Option<Diagnostic> {
        let applied = facts.inventory.member.applied.as_ref()?;
        let commit = applied.commit.as_ref().filter(|commit| !self.repository().holds(commit))?;
        let name = &config.desired.cluster.name.value;
        let short: String = commit.chars().take(10).collect();
        let text = format!(
            "cluster `{name}` was last applied by {} at {} from commit {short}, which this repository does not have",
            applied.by, applied.at
        );
        let hint = "if what runs belongs to another repository, give this cluster another name";
        Some(Diagnostic::general(plan::FOREIGN, Severity::Warning, text).hint(hint))
    }

    /// Says which nodes could not be asked, and what to do; exit 9 unless all of them were excluded.
    pub fn report_unreachable(&self, desired: &Desired, facts: &Facts, limits: &Limits) -> ExitCode {
        let missing = !plan::unreachable_nodes(desired, &facts.inventory, limits).is_empty();
        let mut code = if missing { ExitCode::Incomplete } else { ExitCode::Success };
        for (name, (error, hint)) in &facts.unreachable {
            let labels = facts.inventory.node(name).map(|node| node.labels.clone()).unwrap_or_default();
            if !limits.allow(name, &labels) {
                continue;
            }
            let hint = hint.as_ref().map(|hint| format!("\n  hint: {hint}")).unwrap_or_default();
            self.printer.warning(&format!("node {name}: {error}{hint}"));
            code = ExitCode::Incomplete;
        }
        code
    }

    /// Parses `--on` and `--exclude`.
    pub fn limits(&self, selectors: &super::args::Selectors) -> Result<Limits, Failure> {
        Ok(Limits {
            on: self.selection(selectors.on.as_deref())?,
            exclude: self.selection(selectors.exclude.as_deref())?,
        })
    }

    /// A part of a selector that no node matches is a mistake worth telling. Nodes that left the config and are still
    /// remembered count: they are what one may want to leave out.
    pub fn check_limits(&self, limits: &Limits, desired: &Desired, facts: Option<&Facts>) -> Result<(), Failure> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        let configured = desired.nodes.iter().map(|(name, node)| (name.as_str(), &node.labels));
        let remembered =
            facts.into_iter().flat_map(|facts| &facts.inventory.nodes).map(|node| (node.name.as_str(), &NONE));
        // Later entries win: a configured node keeps its labels.
        let nodes: BTreeMap<&str, &BTreeMap<String, String>> = remembered.chain(configured).collect();
        for selection in limits.on.iter().chain(&limits.exclude) {
            let nodes = nodes.iter().map(|(name, labels)| (*name, *labels));
            selection.resolve(nodes).map_err(|error| Failure::new(ExitCode::Usage, error.to_string()))?;
        }
        Ok(())
    }

    /// The words of another flock command with this one's global options.
    pub fn words(&self, command: &str) -> Vec<String> {
        let mut words = vec!["flock".to_owned()];
        if self.directory.as_os_str() != "." {
            words.extend(["-C".to_owned(), self.directory.display().to_string()]);
        }
        if let Some(folder) = &self.agent_dir {
            words.extend(["--agent-dir".to_owned(), folder.display().to_string()]);
        }
        words.push(command.to_owned());
        words
    }

    /// How this flock is called, for commands that a text proposes.
    pub fn called(&self) -> String {
        let mut words = self.words("");
        words.pop();
        shell_words(&words)
    }

    /// Prints what is about to be done. A reader that went away did not take the order back.
    pub fn show_before_acting(&self, text: &str) -> Result<(), Failure> {
        match self.printer.data(text) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            result => Ok(result?),
        }
    }

    /// How to lay out text on standard output.
    pub fn style(&self) -> Style {
        Style { colour: self.printer.colour(), width: self.printer.width() }
    }

    /// The nodes of the config, and those that are only remembered, that a selector names.
    pub fn select(&self, selector: &str, desired: &Desired, facts: &Facts) -> Result<BTreeSet<String>, Failure> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        let usage = |error: plan::SelectError| Failure::new(ExitCode::Usage, error.to_string());
        let remembered = facts.inventory.nodes.iter().map(|node| (node.name.as_str(), &NONE));
        let held = facts.inventory.member.holds.iter().map(|hold| (hold.node.as_str(), &NONE));
        let configured = desired.nodes.iter().map(|(name, node)| (name.as_str(), &node.labels));
        // Later entries win: a configured node keeps its labels.
        let known: BTreeMap<&str, &BTreeMap<String, String>> = remembered.chain(held).chain(configured).collect();
        Selection::parse(selector).map_err(usage)?.resolve(known).map_err(usage)
    }

    /// Parses one selector.
    pub fn selection(&self, text: Option<&str>) -> Result<Option<Selection>, Failure> {
        text.map(|text| Selection::parse(text).map_err(|error| Failure::new(ExitCode::Usage, error.to_string())))
            .transpose()
    }
}

/// The hub's address, as the environment names it, for facts and plans: without a password that somebody may have put
/// there, and with which no hub is asked.
fn hub_endpoint() -> String {
    let named = HubSettings::from_environment().endpoint;
    let Some((scheme, rest)) = named.trim_end_matches('/').split_once("://") else { return named };
    let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    format!("{scheme}://{}{path}", host.rsplit_once('@').map_or(host, |(_, host)| host))
}

/// A command line that can be pasted into a shell, whatever its words hold.
pub fn shell_words(words: &[String]) -> String {
    let plain =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=,:@%+".contains(c));
    let quoted =
        words.iter().map(|word| if plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::shell_words;

    #[test]
    fn what_is_pasted_is_what_was_meant() {
        let words: Vec<String> = ["flock", "-C", "my lab", "--on", "$(id)", "it's"].map(str::to_owned).to_vec();
        assert_eq!(shell_words(&words), r"flock -C 'my lab' --on '$(id)' 'it'\''s'");
    }
}
