//! This machine as a node, with a real node agent.
#![cfg(all(feature = "agent", feature = "controller"))]
#![expect(clippy::disallowed_methods, reason = "the test lays out a home folder")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use flock::edge::{AgentBinaries, AgentNode, LocalTarget, LocalTransport};
use flock::inventory::{Request, Response};
use flock::ports::Node as _;

/// The home folder comes from the environment, so the check runs in a process of its own.
#[tokio::test(flavor = "multi_thread")]
async fn the_agent_is_copied_and_answers() {
    const CHILD: &str = "FLOCK_TEST_LOCAL_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let home = tempfile::tempdir().expect("a folder");
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "the_agent_is_copied_and_answers", "--nocapture"])
            .env(CHILD, "1")
            .env("HOME", home.path())
            .output()
            .expect("it starts");
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    let built = Path::new(env!("CARGO_BIN_EXE_flock-agent"));
    let agents = AgentBinaries { directory: built.parent().map(Path::to_path_buf) };
    let target = LocalTarget { node: "here".to_owned(), cluster: "lab".to_owned() };
    let node = AgentNode::new(Arc::new(LocalTransport::new(target, agents)));
    let probe = Request::Probe { engines: Vec::new(), weights_path: None, on_node: Vec::new() };
    let Response::Facts { node: facts, .. } = node.call(probe).await.expect("probed") else { panic!("no facts") };
    assert_eq!(facts.name, "here");
    assert!(matches!(node.call(Request::Instances).await, Ok(Response::Instances { .. })));
    assert_eq!(node.host_key().await, None);
    let home = std::env::home_dir().expect("a home");
    let copies = std::fs::read_dir(home.join(".local/share/flock/agents")).expect("there").count();
    assert_eq!(copies, 1);
    node.close().await;
}
