//! From node blocks to connections: the one place that chooses an edge for a node.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::user;
use crate::base::{Hop, Spanned};
use crate::config::{Connection, Desired, SshSettings};
use crate::edge::{
    AgentBinaries, AgentNode, LocalTarget, LocalTransport, Notice, SshEnvironment, SshNetwork, SshTarget, SshTransport,
};
use crate::inventory::MemberNode;
use crate::ports::{Fleet, Node, Transport};

/// The nodes of one cluster.
pub struct ClusterFleet {
    cluster: String,
    defaults: SshSettings,
    nodes: Vec<(String, Connection, SshSettings)>,
    directory: PathBuf,
    agents: AgentBinaries,
    network: Arc<SshNetwork>,
}

impl ClusterFleet {
    /// The fleet of a config.
    pub fn new(desired: &Desired, directory: &Path, agent_dir: Option<PathBuf>, notice: Notice) -> Self {
        let agents = AgentBinaries { directory: agent_dir };
        let environment = SshEnvironment::of_user(user::home(), user::login_name());
        Self {
            cluster: desired.cluster.name.value.clone(),
            defaults: desired.cluster.ssh.clone(),
            nodes: desired
                .nodes
                .values()
                .map(|node| (node.name.value.clone(), node.connection.clone(), node.ssh.clone()))
                .collect(),
            directory: directory.to_owned(),
            network: Arc::new(SshNetwork::new(environment, agents.clone(), notice)),
            agents,
        }
    }

    /// How the config's nodes are remembered by the member record: aliases of this machine's SSH config resolved, so
    /// that the record also serves elsewhere.
    pub fn member_node(&self, name: &str, host_key: Option<String>) -> Option<MemberNode> {
        let (_, connection, ssh) = self.nodes.iter().find(|(node, ..)| node == name)?;
        let Connection::Ssh { address } = connection else {
            return Some(MemberNode { name: name.to_owned(), address: "local".to_owned(), ..MemberNode::default() });
        };
        let address = address.value.clone();
        // Where the SSH config cannot be read nothing was connected to, and what is written must do.
        let Ok(reached) = self.network.reached(&self.target(name, &address, ssh)) else {
            let port = ssh.port.unwrap_or(22);
            let user = ssh.user.clone();
            return Some(MemberNode { name: name.to_owned(), address, port, user, host_key, ..MemberNode::default() });
        };
        Some(MemberNode {
            name: name.to_owned(),
            alias: (address != reached.host).then_some(address),
            address: reached.host,
            port: reached.port,
            user: reached.user,
            host_key,
            jump: (!reached.jump.is_empty()).then(|| Hop::join(&reached.jump)),
        })
    }

    fn over(&self, transport: impl Transport + 'static) -> Arc<dyn Node> {
        Arc::new(AgentNode::new(Arc::new(transport)))
    }

    fn local(&self, name: &str) -> Arc<dyn Node> {
        let target = LocalTarget { node: name.to_owned(), cluster: self.cluster.clone() };
        self.over(LocalTransport::new(target, self.agents.clone()))
    }

    fn remote(&self, target: SshTarget) -> Arc<dyn Node> {
        self.over(SshTransport::new(target, Arc::clone(&self.network)))
    }

    fn target(&self, name: &str, address: &str, ssh: &SshSettings) -> SshTarget {
        SshTarget {
            node: name.to_owned(),
            cluster: self.cluster.clone(),
            address: address.to_owned(),
            port: ssh.port,
            user: ssh.user.clone(),
            identities: ssh.identity.iter().map(|path| self.path(path)).collect(),
            known_hosts: ssh.known_hosts.as_ref().map(|path| self.path(path)),
            connect_timeout: ssh.connect_timeout,
            // The text was checked when the config was read.
            jump: ssh.jump.as_ref().and_then(|jump| Hop::parse_row(&jump.value).ok()),
            trust_on_first_use: ssh.trust_on_first_use.unwrap_or(false),
            recorded_key: None,
        }
    }

    /// The way to a node that left the config. Under its alias where that still leads to the recorded address, for
    /// then its identities and known hosts are found again; else to the recorded address, the recorded way. Nobody
    /// wrote these words into the config: a key that nobody knows is not trusted, whatever the config says.
    fn recorded(&self, member: &MemberNode) -> SshTarget {
        let ssh = &self.defaults;
        let recorded_key = member.host_key.clone();
        let leads_there = |target: &SshTarget| {
            self.network.reached(target).is_ok_and(|reached| {
                reached.host == member.address
                    && reached.port == member.port
                    && Some(Hop::join(&reached.jump)).filter(|jump| !jump.is_empty()) == member.jump
            })
        };
        let user = member.user.clone().or_else(|| ssh.user.clone());
        let names = member.alias.iter().chain([&member.address]);
        let as_configured = names.map(|name| SshTarget {
            user: user.clone(),
            recorded_key: recorded_key.clone(),
            trust_on_first_use: false,
            ..self.target(&member.name, name, ssh)
        });
        if let Some(target) = as_configured.into_iter().find(leads_there) {
            return target;
        }
        SshTarget {
            user,
            port: Some(member.port),
            jump: Some(member.jump.as_deref().and_then(|jump| Hop::parse_row(jump).ok()).unwrap_or_default()),
            recorded_key,
            trust_on_first_use: false,
            ..self.target(&member.name, &member.address, ssh)
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
        let node = |(name, connection, ssh): &(String, Connection, SshSettings)| match connection {
            Connection::Local => self.local(name),
            Connection::Ssh { address } => self.remote(self.target(name, &address.value, ssh)),
        };
        self.nodes.iter().map(node).collect()
    }

    fn remembered(&self, member: &MemberNode) -> Arc<dyn Node> {
        if member.address == "local" { self.local(&member.name) } else { self.remote(self.recorded(member)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Tree, TreeEntry};

    fn fleet(ssh: &str) -> ClusterFleet {
        let text = format!("cluster \"lab\" {{ {ssh} }}\nnode \"a\" address=\"10.0.0.1\"\n");
        let mut tree = Tree::new();
        tree.insert("cluster.kdl", TreeEntry::File(text.into_bytes()));
        let loaded = crate::config::load(&tree);
        let desired = loaded.desired.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
        ClusterFleet::new(&desired, Path::new("/lab"), None, Arc::new(|_| {}))
    }

    #[test]
    fn a_node_is_remembered_with_its_way() {
        let fleet = fleet(r#"ssh user="flock" jump="gate.example.org:2222" port=2000 trust-on-first-use=#true"#);
        let member = fleet.member_node("a", Some("ssh-ed25519 K".to_owned())).expect("it is there");
        assert_eq!((member.address.as_str(), member.port, member.user.as_deref()), ("10.0.0.1", 2000, Some("flock")));
        assert_eq!(member.jump.as_deref(), Some("flock@gate.example.org:2222"));
        assert_eq!(member.alias, None);
        // As long as the config leads there, its words are used: they may name more than the record does.
        let target = fleet.recorded(&member);
        assert!(!target.trust_on_first_use);
        assert_eq!(target.jump, Hop::parse_row("gate.example.org:2222").ok());
        assert_eq!(target.recorded_key.as_deref(), Some("ssh-ed25519 K"));
    }

    #[test]
    fn a_node_that_left_is_reached_the_recorded_way() {
        let member = MemberNode {
            name: "gone".to_owned(),
            address: "10.0.0.9".to_owned(),
            port: 2222,
            user: Some("ada".to_owned()),
            host_key: Some("ssh-ed25519 K".to_owned()),
            alias: Some("old-alias".to_owned()),
            jump: Some("me@gate,inner:2200".to_owned()),
        };
        for ssh in ["", r#"ssh user="flock" jump="elsewhere" trust-on-first-use=#true"#] {
            let target = fleet(ssh).recorded(&member);
            assert!(!target.trust_on_first_use, "{ssh}");
            assert_eq!((target.address.as_str(), target.port), ("10.0.0.9", Some(2222)), "{ssh}");
            assert_eq!(target.user.as_deref(), Some("ada"), "{ssh}");
            assert_eq!(target.jump, Hop::parse_row("me@gate,inner:2200").ok(), "{ssh}");
            assert_eq!(target.recorded_key.as_deref(), Some("ssh-ed25519 K"), "{ssh}");
        }
        let direct = MemberNode { jump: None, alias: None, ..member };
        assert_eq!(fleet(r#"ssh jump="elsewhere""#).recorded(&direct).jump, Some(Vec::new()), "straight there");
        // Records of earlier versions have neither word, and are written as they were.
        let text = r#"{"name":"gone","address":"10.0.0.9","port":22,"user":null,"host_key":null}"#;
        let old: MemberNode = serde_json::from_str(text).expect("read");
        assert_eq!(serde_json::to_string(&old).expect("written"), text);
    }
}
