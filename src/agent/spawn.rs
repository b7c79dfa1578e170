//! Starting an engine: its port, its key, its environment, its process.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::error::AgentError;
use super::files::{private_folder, random_hex, write_atomic};
use super::layout::{Layout, MARK, MARK_STATE};
use super::{container, logs, net, store};
use crate::base::Secret;
use crate::engine::also_mounted;
use crate::inventory::InstanceSpec;

/// What an engine sees of the keeper's environment; everything else comes from its specification.
pub const PASSED: &[&str] = &["PATH", "LANG", "USER", "LOGNAME", "TMPDIR", "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR"];
/// Where programs are where the environment does not say.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The agent's only substitution in arguments and environment values, the name of its container aside.
const PORT: &str = "{port}";

/// The port for a start: the one it had, then the planned one, then the alternates, the first that is not
/// taken by another instance of ours, was not found taken before, and can be bound.
pub fn choose_port(spec: &InstanceSpec, held: u16, avoid: &[u16], ours: &BTreeSet<u16>) -> Option<u16> {
    let had = (held != 0).then_some(held);
    let candidates = had.into_iter().chain([spec.port]).chain(spec.port_alternates.iter().copied());
    candidates.into_iter().find(|port| !avoid.contains(port) && !ours.contains(port) && net::can_bind(*port))
}

/// The instance's key, made on its first start and kept.
pub fn key(layout: &Layout, instance: &str) -> Result<Secret<String>, AgentError> {
    let path = layout.key(instance);
    match std::fs::read_to_string(&path) {
        Ok(key) if key.trim().len() == 64 => return Ok(Secret::new(key.trim().to_owned())),
        _ => {}
    }
    let key = random_hex(32)?;
    write_atomic(&path, format!("{key}\n").as_bytes(), 0o600)?;
    Ok(Secret::new(key))
}

/// The command, in full: nothing is read from the environment but [`PASSED`].
pub fn command(
    layout: &Layout,
    spec: &InstanceSpec,
    port: u16,
    key: Option<&Secret<String>>,
) -> Result<Command, AgentError> {
    let contained = spec.container.as_ref().map(|planned| (planned.name.as_str(), container::name(layout, planned)));
    let fill = |text: &str| match &contained {
        Some((planned, name)) if text == *planned => name.clone(),
        _ => text.replace(PORT, &port.to_string()),
    };
    let linked =
        spec.weights.iter().fold(spec.argv.clone(), |argv, set| also_mounted(&argv, &set.folder, &store::linked(set)));
    let (program, arguments) =
        linked.split_first().ok_or_else(|| AgentError::Other("the argument vector is empty".into()))?;
    let mut command = Command::new(fill(program));
    command.args(arguments.iter().map(|argument| fill(argument))).env_clear();
    command.env("PATH", DEFAULT_PATH).env("HOME", &layout.home);
    for name in PASSED {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.envs(spec.env.iter().map(|(name, value)| (name, fill(value))));
    if let (Some(name), Some(key)) = (&spec.key_env, key) {
        command.env(name, key.reveal());
    }
    command.env(MARK, layout.mark(&spec.instance)).env(MARK_STATE, &layout.state);
    command.current_dir(layout.instance(&spec.instance)).process_group(0).stdin(Stdio::null());
    Ok(command)
}

/// Starts the process with its output appended to the log. Also says where in the log its output begins.
pub fn spawn(layout: &Layout, instance: &str, mut command: Command, start: u32) -> Result<(Child, u64), AgentError> {
    private_folder(&layout.instance(instance))?;
    let path = layout.log(instance);
    let opened = logs::bound(&path, logs::LIMIT, logs::KEPT).and_then(|_| logs::open(&path)).and_then(|mut log| {
        writeln!(log, "--- flock-agent: start {start}")?;
        let from = log.metadata()?.len();
        Ok((log.try_clone()?, log, from))
    });
    let (output, errors, from) = opened.map_err(AgentError::file("opening", &path))?;
    let program = std::path::PathBuf::from(command.get_program());
    let child = command.stdout(output).stderr(errors).spawn().map_err(AgentError::file("starting", &program))?;
    Ok((child, from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::EngineKind;
    use std::collections::BTreeMap;
    use std::net::{Ipv4Addr, TcpListener};
    use std::path::Path;

    fn spec(port: u16, alternates: &[u16]) -> InstanceSpec {
        InstanceSpec {
            instance: "abc".into(),
            specification: "sha256:1".into(),
            model: "m".into(),
            replica: 0,
            engine: EngineKind::LlamaCpp,
            variant: "v".into(),
            accelerators: Vec::new(),
            argv: vec!["/bin/echo".into(), "--port={port}".into()],
            env: BTreeMap::from([("URL".into(), "http://127.0.0.1:{port}".into()), (MARK.into(), "forged".into())]),
            key_env: Some("KEY".into()),
            port,
            port_alternates: alternates.to_vec(),
            internal_ports: Vec::new(),
            served_name: "m".into(),
            weights: Vec::new(),
            planned_bytes: Vec::new(),
            planned_host_bytes: 0,
            ready_timeout_ms: 1000,
            unresponsive_after_ms: 0,
            container: None,
            sized_for: None,
            part: None,
        }
    }

    #[test]
    fn a_taken_port_gives_way_to_an_alternate() {
        let held: Vec<TcpListener> =
            (0..3).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port")).collect();
        let ports: Vec<u16> = held.iter().map(|one| one.local_addr().expect("bound").port()).collect();
        let mut held = held.into_iter();
        let _taken = held.next();
        drop(held);
        let spec = spec(ports[0], &[ports[1], ports[2]]);
        let none = BTreeSet::new();
        assert_eq!(choose_port(&spec, 0, &[], &none), Some(ports[1]));
        assert_eq!(choose_port(&spec, ports[2], &[], &none), Some(ports[2]));
        assert_eq!(choose_port(&spec, 0, &[ports[1]], &none), Some(ports[2]));
        assert_eq!(choose_port(&spec, 0, &[ports[1]], &BTreeSet::from([ports[2]])), None);
    }

    #[test]
    fn the_environment_is_ours_and_the_port_is_filled_in() {
        let layout = Layout::new(Path::new("/home/u"), "lab", "ada-1").expect("good names");
        let key = Secret::new("k".to_owned());
        let command = command(&layout, &spec(20000, &[]), 20001, Some(&key)).expect("a command");
        let arguments: Vec<_> = command.get_args().collect();
        assert_eq!(arguments, ["--port=20001"]);
        let value = |name: &str| {
            let found = command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value);
            found.map(|value| value.to_string_lossy().into_owned())
        };
        assert_eq!(value("URL").as_deref(), Some("http://127.0.0.1:20001"));
        assert_eq!(value("KEY").as_deref(), Some("k"));
        assert_eq!(value(MARK).as_deref(), Some("lab/ada-1/abc"));
        assert_eq!(value("CARGO_PKG_NAME"), None);
    }
}
