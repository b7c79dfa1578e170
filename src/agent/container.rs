//! Containers that outlive their client: docker's and podman's belong to a daemon, so they are ended by name.

use std::process::Command;
use std::time::Duration;

use super::layout::Layout;
use super::ready::Watch;
use super::supervise::Instance;
use super::tool;
use crate::base::Digest;
use crate::inventory::ContainerRef;

/// How long the runtime's daemon may take to end a container.
const DEADLINE: Duration = Duration::from_secs(60);
/// How often a daemon that does not answer is asked before a start is tried all the same, which then says why.
const ATTEMPTS: u32 = 3;
/// What runtimes say about a name that they do not know, in lower case.
const UNKNOWN: &[&str] = &["no such container", "no container with name or id"];

/// The name of an instance's container. The plan's knows the instance alone; one daemon serves all users of a machine,
/// and two of them may have the same cluster, node and models.
pub fn name(layout: &Layout, container: &ContainerRef) -> String {
    let uid = rustix::process::geteuid().as_raw();
    let whose = format!("{uid} {}", layout.state.display());
    format!("{}-{}", container.name, Digest::of(whose.as_bytes()).short(12))
}

impl Instance {
    /// Whether no container of this instance is left; has one removed that is. Before a start, a daemon that does not
    /// answer is no reason to wait for ever.
    pub(super) fn container_is_gone(&mut self, layout: &Layout, starting: bool) -> bool {
        let Some(container) = self.record.spec.container.clone() else { return true };
        let mut names = vec![name(layout, &container)];
        match &self.record.container {
            Some(last) if !names.contains(last) => names.push(last.clone()),
            // An agent before this one started it, under the plan's name.
            None if self.record.starts > 0 => names.push(container.name.clone()),
            _ => {}
        }
        let most = starting.then_some(ATTEMPTS);
        self.removal.get_or_insert_with(|| removal(container.program, names, most)).is_done()
    }
}

fn removal(program: String, names: Vec<String>, most: Option<u32>) -> Watch {
    let mut attempts = 0;
    Watch::new(move || {
        attempts += 1;
        // A runtime that is not there keeps nothing.
        if !tool::is_program(program.as_ref()) || most.is_some_and(|most| attempts > most) {
            return true;
        }
        names.iter().all(|name| {
            let mut command = Command::new(&program);
            command.args(["rm", "--force", name]);
            tool::run(&mut command, DEADLINE).is_ok_and(|printed| {
                let text = printed.text.to_ascii_lowercase();
                printed.code == Some(0) || UNKNOWN.iter().any(|unknown| text.contains(unknown))
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::time::Instant;

    use super::*;
    use crate::agent::state::Record;

    /// An instance in a container, whose runtime writes down what it is told.
    fn instance(home: &Path) -> Instance {
        let program = home.join("docker");
        let script = format!("#!/bin/sh\necho \"$@\" >> {}\n", home.join("told").display());
        std::fs::write(&program, script).expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("set");
        let mut record = Record::unknown("0123", 0);
        let program = program.to_str().expect("UTF-8").to_owned();
        record.spec.container = Some(ContainerRef { program, name: "flock-0123".into() });
        Instance::new(record.spec, 0)
    }

    fn told(home: &Path, layout: &Layout, instance: &mut Instance) -> Vec<String> {
        let _ = std::fs::remove_file(home.join("told"));
        instance.removal = None;
        let until = Instant::now() + Duration::from_secs(30);
        while !instance.container_is_gone(layout, true) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let text = std::fs::read_to_string(home.join("told")).expect("it was told something");
        text.lines().map(|line| line.strip_prefix("rm --force ").expect("a removal").to_owned()).collect()
    }

    #[test]
    fn a_start_removes_the_container_of_its_own_state_folder_and_of_nobody_else() {
        let home = tempfile::tempdir().expect("a folder");
        let layout = |home: &Path| Layout::new(home, "lab", "ada-1").expect("good names");
        let (mine, other) = (layout(home.path()), layout(Path::new("/home/other")));
        let mut instance = instance(home.path());
        let container = instance.record.spec.container.clone().expect("set");
        assert_ne!(name(&mine, &container), name(&other, &container));
        assert_eq!(told(home.path(), &mine, &mut instance), [name(&mine, &container)]);
        // What an older agent started here has the plan's name, and what this one started has its own.
        instance.record.starts = 1;
        assert_eq!(told(home.path(), &mine, &mut instance), [name(&mine, &container), "flock-0123".into()]);
        instance.record.container = Some(name(&mine, &container));
        assert_eq!(told(home.path(), &mine, &mut instance), [name(&mine, &container)]);
        let mut spec = instance.record.spec.clone();
        spec.argv = vec!["/usr/bin/docker".into(), "--name".into(), container.name.clone()];
        let command = crate::agent::spawn::command(&mine, &spec, 1, None).expect("a command");
        assert_eq!(command.get_args().last(), Some(name(&mine, &container).as_ref()));
    }

    #[test]
    fn a_removal_of_before_a_start_is_not_taken_for_the_one_at_the_end() {
        let home = tempfile::tempdir().expect("a folder");
        let layout = Layout::new(home.path(), "lab", "ada-1").expect("good names");
        let mut instance = instance(home.path());
        instance.container_is_gone(&layout, true);
        instance.end(&layout, 0, 1).expect("begun");
        assert!(instance.removal.is_none());
        instance.container_is_gone(&layout, false);
        instance.end(&layout, 0, 2).expect("again");
        assert!(instance.removal.is_some(), "the one at the end goes on");
    }
}
