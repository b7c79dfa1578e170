//! What a graph is.

use serde::Serialize;

/// `flock graph … --format json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Graph {
    /// 1.
    pub format: u32,
    /// `hardware`, `placement` or `workflow`.
    pub kind: &'static str,
    /// Cluster name.
    pub cluster: String,
    /// Frames around vertices, in order.
    pub groups: Vec<Group>,
    /// The vertices, in order.
    pub nodes: Vec<Vertex>,
    /// The edges, in order.
    pub edges: Vec<Edge>,
}

/// A frame: a machine, or a workflow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    /// `node/NAME`, `workflow/NAME`.
    pub id: String,
    /// What it is called.
    pub label: String,
    /// More about it, one line each.
    pub lines: Vec<String>,
}

/// A vertex.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Vertex {
    /// `accelerator/UUID`, `host/NODE`, `model/NAME`, `instance/ID`, `unplaced/MODEL`, `step/WORKFLOW/NAME`,
    /// `agent/NAME`.
    pub id: String,
    /// The word before the first `/`.
    pub kind: &'static str,
    /// The frame it is in.
    pub group: Option<String>,
    /// What it is called.
    pub label: String,
    /// More about it, one line each.
    pub lines: Vec<String>,
}

/// An edge between two vertices or two groups.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Edge {
    /// Id of one end.
    pub from: String,
    /// Id of the other.
    pub to: String,
    /// `link`, `nvlink`, `pcie`, `numa`, `system`, `instance`, `on`, `after`, `agent`, `model`, `repeat`, `traffic`,
    /// `delegate`.
    pub kind: String,
    /// Whether it has a direction.
    pub directed: bool,
    /// What it says.
    pub label: Option<String>,
}

impl Graph {
    /// An empty one.
    pub(super) fn new(kind: &'static str, cluster: &str) -> Self {
        let (groups, nodes, edges) = Default::default();
        Self { format: 1, kind, cluster: cluster.to_owned(), groups, nodes, edges }
    }

    pub(super) fn group(&mut self, id: String, label: &str, lines: Vec<String>) {
        self.groups.push(Group { id, label: label.to_owned(), lines });
    }

    pub(super) fn vertex(
        &mut self,
        id: String,
        kind: &'static str,
        group: Option<String>,
        label: String,
        lines: Vec<String>,
    ) {
        self.nodes.push(Vertex { id, kind, group, label, lines });
    }

    pub(super) fn arrow(&mut self, from: String, to: String, kind: &str, label: Option<String>) {
        self.edges.push(Edge { from, to, kind: kind.to_owned(), directed: true, label });
    }

    pub(super) fn line(&mut self, from: String, to: String, kind: &str, label: Option<String>) {
        self.edges.push(Edge { from, to, kind: kind.to_owned(), directed: false, label });
    }
}
