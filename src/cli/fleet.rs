//! From node blocks to connections: the one place that chooses an edge for a node.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::user;
use crate::base::Spanned;
use crate::config::{Connection, Desired, SshSettings};
use crate::edge::{AgentBinaries, AgentNode, LocalTarget, LocalTransport, SshTarget, SshTransport};
use crate::inventory::MemberNode;
use crate::ports::{Fleet, Node, Transport};

/// Deadline of connect and authentication where the config says nothing.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The nodes of one cluster.
pub struct ClusterFleet {
    cluster: String,
    defaults: SshSettings,
    nodes: Vec<(String, Connection, SshSettings)>,
    directory: PathBuf,
    agents: AgentBinaries,
}

impl ClusterFleet {
    /// The fleet of a config.
    pub fn new(desired: &Desired, directory: &Path, agent_dir: Option<PathBuf>) -> Self {
        Self {
            cluster: desired.cluster.name.value.clone(),
            defaults: desired.cluster.ssh.clone(),
            nodes: desired
                .nodes
                .values()
                .map(|node| (node.name.value.clone(), node.connection.clone(), node.ssh.clone()))
                .collect(),
            directory: directory.to_owned(),
            agents: AgentBinaries { directory: agent_dir },
        }
    }

    /// How the config's nodes are remembered by the member record.
    pub fn member_node(&self, name: &str, host_key: Option<String>) -> Option<MemberNode> {
        let (_, connection, ssh) = self.nodes.iter().find(|(node, ..)| node == name)?;
        Some(match connection {
            Connection::Local => {
                MemberNode { name: name.to_owned(), address: "local".to_owned(), ..MemberNode::default() }
            }
            Connection::Ssh { address } => MemberNode {
                name: name.to_owned(),
                address: address.value.clone(),
                port: ssh.port.unwrap_or(22),
                user: ssh.user.clone(),
                host_key,
            },
        })
    }

    fn node(&self, name: &str, connection: &Connection, ssh: &SshSettings) -> Arc<dyn Node> {
        let transport: Arc<dyn Transport> = match connection {
            Connection::Local => Arc::new(LocalTransport::new(
                LocalTarget { node: name.to_owned(), cluster: self.cluster.clone() },
                self.agents.clone(),
            )),
            Connection::Ssh { address } => {
                Arc::new(SshTransport::new(self.target(name, &address.value, ssh), self.agents.clone()))
            }
        };
        Arc::new(AgentNode::new(transport))
    }

    fn target(&self, name: &str, address: &str, ssh: &SshSettings) -> SshTarget {
        SshTarget {
            node: name.to_owned(),
            cluster: self.cluster.clone(),
            address: address.to_owned(),
            port: ssh.port.unwrap_or(22),
            user: ssh.user.clone().unwrap_or_else(user::login_name),
            identities: ssh.identity.iter().map(|path| self.path(path)).collect(),
            known_hosts: ssh
                .known_hosts
                .as_ref()
                .map_or_else(|| user::home().join(".ssh/known_hosts"), |path| self.path(path)),
            connect_timeout: ssh.connect_timeout.unwrap_or(CONNECT_TIMEOUT),
        }
    }

    /// A path of the config: `/` and `~` as they are, others relative to the file that names them.
    fn path(&self, path: &Spanned<String>) -> PathBuf {
        let file = Path::new(path.place.file.as_ref());
        self.directory.join(file.parent().unwrap_or(Path::new(""))).join(user::expand(&path.value))
    }
}

impl Fleet for ClusterFleet {
    fn configured(&self) -> Vec<Arc<dyn Node>> {
        self.nodes.iter().map(|(name, connection, ssh)| self.node(name, connection, ssh)).collect()
    }

    fn remembered(&self, member: &MemberNode) -> Arc<dyn Node> {
        if member.address == "local" {
            return self.node(&member.name, &Connection::Local, &self.defaults);
        }
        let ssh = SshSettings { port: Some(member.port), user: member.user.clone(), ..self.defaults.clone() };
        let place = crate::base::Place::start_of("cluster.kdl");
        self.node(&member.name, &Connection::Ssh { address: Spanned::new(member.address.clone(), place) }, &ssh)
    }
}
