//! What the nodes of one cluster share on the way to them: the SSH config, the agents' binaries, and the connections
//! to jump hosts, one per host however many nodes lie behind it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use tokio::sync::Mutex;

use super::client_config::ConfigError;
use super::config_files;
use super::config_lines::ConfigFile;
use super::connection::Connection;
use super::login::{Login, Route, SshEnvironment, SshTarget, refused, route};
use crate::base::Hop;
use crate::edge::agents::{AgentBinaries, AgentFile, Platform};
use crate::ports::NodeError;

/// Tells the person something that happened on the way: a key that was recorded.
pub type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// The ways to the nodes of one cluster.
pub struct SshNetwork {
    environment: SshEnvironment,
    pub(super) agents: AgentBinaries,
    notice: Notice,
    files: OnceLock<Result<Vec<ConfigFile>, ConfigError>>,
    binaries: OnceLock<Vec<(Platform, AgentFile)>>,
    hops: Mutex<BTreeMap<String, Arc<Slot>>>,
}

/// Where a target's address and settings lead, for the member record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reached {
    /// Host name or address, aliases of the SSH config resolved.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Login name, where any config says one.
    pub user: Option<String>,
    /// The hosts on the way, resolved too.
    pub jump: Vec<Hop>,
}

/// The connection to a jump host.
#[derive(Default)]
struct Slot {
    /// How often it was tried.
    tries: AtomicU64,
    state: Mutex<(Weak<Connection>, Option<NodeError>)>,
}

impl SshNetwork {
    /// Reads and connects to nothing yet.
    pub fn new(environment: SshEnvironment, agents: AgentBinaries, notice: Notice) -> Self {
        Self {
            environment,
            agents,
            notice,
            files: OnceLock::new(),
            binaries: OnceLock::new(),
            hops: Mutex::new(BTreeMap::new()),
        }
    }

    /// Where a target leads. Reads the SSH config the first time.
    pub fn reached(&self, target: &SshTarget) -> Result<Reached, NodeError> {
        let Route { hops, target: last } = self.route(target)?;
        Ok(Reached {
            user: (target.user.is_some() || last.user != self.environment.user).then_some(last.user),
            host: last.host,
            port: last.port,
            jump: hops.iter().map(Login::as_hop).collect(),
        })
    }

    fn route(&self, target: &SshTarget) -> Result<Route, NodeError> {
        let SshEnvironment { home, config, system_config, .. } = &self.environment;
        let files = self.files.get_or_init(|| config_files::read(home, config, system_config));
        let files = files.as_ref().map_err(|error| refused(&error.place, &error.reason, &error.hint))?;
        route(target, files, &self.environment)
    }

    /// The agents that could be on a node. Reads whole files the first time.
    pub(super) async fn binaries(self: &Arc<Self>) -> Result<&[(Platform, AgentFile)], NodeError> {
        if self.binaries.get().is_none() {
            let shared = Arc::clone(self);
            let read = tokio::task::spawn_blocking(move || {
                shared.binaries.get_or_init(|| shared.agents.all());
            });
            read.await.map_err(|error| super::connection::lost(&error))?;
        }
        Ok(self.binaries.get().map_or(&[], Vec::as_slice))
    }

    /// A new connection to a target, through its jump hosts.
    pub(super) async fn open(&self, target: &SshTarget) -> Result<Connection, NodeError> {
        let Route { hops, target: last } = self.route(target)?;
        let mut through: Option<(Arc<Connection>, &Login)> = None;
        let mut key = String::new();
        for hop in &hops {
            key.push_str(&format!("{hop:?}\n"));
            let connection = self.hop(&key, hop, through).await.map_err(|error| match error {
                known @ NodeError::Jump { .. } => known,
                error => NodeError::Jump { hop: hop.address(), error: Box::new(error) },
            })?;
            through = Some((connection, hop));
        }
        Connection::open(&last, through, &self.notice).await
    }

    /// The connection to a hop, one for all. Who waited for an attempt that failed gets its error.
    async fn hop(
        &self,
        key: &str,
        login: &Login,
        through: Option<(Arc<Connection>, &Login)>,
    ) -> Result<Arc<Connection>, NodeError> {
        let slot = Arc::clone(self.hops.lock().await.entry(key.to_owned()).or_default());
        let seen = slot.tries.load(Ordering::SeqCst);
        let mut state = slot.state.lock().await;
        if let Some(connection) = state.0.upgrade().filter(|connection| !connection.is_closed()) {
            return Ok(connection);
        }
        if let (true, Some(error)) = (slot.tries.load(Ordering::SeqCst) > seen, &state.1) {
            return Err(error.clone());
        }
        let opened = Connection::open(login, through, &self.notice).await;
        slot.tries.fetch_add(1, Ordering::SeqCst);
        match opened {
            Ok(connection) => {
                let connection = Arc::new(connection);
                *state = (Arc::downgrade(&connection), None);
                Ok(connection)
            }
            Err(error) => {
                *state = (Weak::new(), Some(error.clone()));
                Err(error)
            }
        }
    }
}
