//! The keeper's socket: where it lies, who may use it, and one thread per connection.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde::{Deserialize, Serialize};

use super::error::AgentError;
use super::files::{owned_folder, read_json, remove};
use super::frames::{read_message, write_message};
use super::layout::Layout;
use crate::inventory::{Request, Response};

/// What `serve` and the keeper say to each other, as JSON frames on the socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// Who are you?
    Hello,
    /// End, and leave the engines alone.
    Quit,
    /// A request of the agent protocol.
    Do {
        /// The request.
        request: Box<Request>,
    },
}

/// The keeper's answer. `serve` reads that of a request as plain JSON, since it only passes it on: a keeper that is
/// newer may tell more, and half of the agent's code would be there for reading facts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum Say<R> {
    /// To `Hello`.
    Keeper {
        /// Its version.
        version: String,
        /// The agent protocol it understands in [`Ask::Do`].
        #[serde(default = "first")]
        protocol: u32,
    },
    /// To `Quit`.
    Bye,
    /// To `Do`.
    Answer {
        /// The answer.
        response: R,
    },
}

fn first() -> u32 {
    1
}

/// `keeper.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Badge {
    /// The keeper's process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Where it listens.
    pub socket: PathBuf,
    /// The host it runs on: homes may be shared.
    #[serde(default)]
    pub host: String,
    /// The file of its program.
    #[serde(default)]
    pub program: Option<PathBuf>,
}

/// Whoever answers on the socket.
pub trait Answers: Clone + Send + 'static {
    /// Answers one question.
    fn answer(&self, ask: Ask) -> Say<Response>;
}

/// A listening socket, removed when dropped.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    inode: u64,
    unwanted: Arc<AtomicBool>,
}

impl Socket {
    /// Listens at the first place that can be had. The caller holds the keeper's lock, so that a socket file
    /// that is there is a dead one's.
    pub fn bind(layout: &Layout, answers: &impl Answers) -> Result<Self, AgentError> {
        let mut refused = None;
        for path in places(layout) {
            match Self::bind_at(&path, answers) {
                Ok(socket) => return Ok(socket),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or_else(|| AgentError::Other("there is no place for a socket".into())))
    }

    fn bind_at(path: &Path, answers: &impl Answers) -> Result<Self, AgentError> {
        owned_folder(path.parent().unwrap_or(Path::new("/")))?;
        remove(path)?;
        let listener = UnixListener::bind(path).map_err(AgentError::file("listening on", path))?;
        let inode = fs::symlink_metadata(path).map_err(AgentError::file("reading", path))?.ino();
        let unwanted = Arc::new(AtomicBool::new(false));
        let (answers, stop) = (answers.clone(), Arc::clone(&unwanted));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let answers = answers.clone();
                if let Ok(stream) = stream {
                    thread::spawn(move || converse(stream, &answers));
                }
            }
        });
        Ok(Self { path: path.to_owned(), inode, unwanted })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is still there.
    pub fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.unwanted.store(true, Ordering::Relaxed);
        if self.is_there() {
            // The thread that accepts wakes up for this and ends.
            let _ = UnixStream::connect(&self.path);
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn converse(mut stream: UnixStream, answers: &impl Answers) {
    while let Ok(Some(ask)) = read_message::<Ask>(&mut stream) {
        if write_message(&mut stream, &answers.answer(ask)).is_err() {
            return;
        }
    }
}

/// `/tmp/flock-UID`, then `$XDG_RUNTIME_DIR/flock`: the runtime folder is the second choice, because session
/// managers remove it when the user's last session ends, and the keeper lives on. Last below the home, where nobody
/// else can take the name; paths there may be too long for a socket.
pub fn places(layout: &Layout) -> Vec<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let mut folders = vec![PathBuf::from(format!("/tmp/flock-{uid}"))];
    if let Some(folder) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute()) {
        folders.push(folder.join("flock"));
    }
    folders.push(layout.home.join(".local/share/flock/sockets"));
    folders.into_iter().map(|folder| folder.join(layout.socket_name())).collect()
}

/// A connection to the keeper that runs, if one does: where its badge says, else where it might be.
pub fn connect(layout: &Layout) -> Option<UnixStream> {
    let uid = rustix::process::geteuid().as_raw();
    let badge = read_json::<Badge>(&layout.keeper()).ok().flatten().map(|badge| badge.socket);
    badge.into_iter().chain(places(layout)).find_map(|path| {
        let ours =
            |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.uid() == uid && !found.is_symlink());
        let safe = ours(&path) && path.parent().is_some_and(ours);
        if safe { UnixStream::connect(&path).ok() } else { None }
    })
}
