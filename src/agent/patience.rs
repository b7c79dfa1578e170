//! A peer that is gone without a word: a suspended laptop, a cut cable. Whoever serves it must not keep a file's lock,
//! or live on the node, until the kernel notices.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long one read or write may wait for the peer. flock opens a new stream where an idle one has ended.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Milliseconds of this process, from 1 on. Not the wall's, which somebody may set.
fn now_ms() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    1 + BEGAN.get_or_init(Instant::now).elapsed().as_millis() as u64
}

/// How many transfers to other nodes are under way: they go on where the controller is silent or gone.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

/// Work that keeps this process alive until it is dropped.
#[derive(Debug)]
pub struct AtWork(());

impl AtWork {
    /// Begins it.
    pub fn begin() -> Self {
        AT_WORK.fetch_add(1, Ordering::SeqCst);
        Self(())
    }

    /// Waits until none is under way.
    pub fn finish() {
        while AT_WORK.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        AT_WORK.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Since when somebody waits for the peer, in milliseconds; 0 while nobody does.
#[derive(Debug, Clone, Default)]
pub struct Waiting(Arc<AtomicU64>);

impl Waiting {
    /// Watches from a thread of its own, and calls `give_up` once when a wait is longer than `patience`.
    pub fn watch(&self, patience: Duration, give_up: impl FnOnce() + Send + 'static) {
        let waiting = self.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep((patience / 20).max(Duration::from_millis(10)));
                let since = waiting.0.load(Ordering::Relaxed);
                if since != 0 && now_ms().saturating_sub(since) > patience.as_millis() as u64 {
                    if AT_WORK.load(Ordering::SeqCst) > 0 {
                        continue;
                    }
                    return give_up();
                }
            }
        });
    }

    fn during<T>(&self, wait: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.0.store(now_ms(), Ordering::Relaxed);
        let result = wait();
        self.0.store(0, Ordering::Relaxed);
        result
    }
}

/// A stream whose waits are watched.
pub struct Watched<S>(pub S, pub Waiting);

impl<S: Read> Read for Watched<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.1.during(|| self.0.read(buffer))
    }
}

impl<S: Write> Write for Watched<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.during(|| self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.1.during(|| self.0.flush())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_silent_peer_is_given_up_and_a_talking_one_is_not() {
        let (given_up, gave_up) = mpsc::channel();
        let waiting = Waiting::default();
        waiting.watch(Duration::from_secs(3), move || given_up.send(()).expect("the test listens"));
        let (mut reader, mut writer) = io::pipe().expect("a pipe");
        let talker = std::thread::spawn(move || {
            for _ in 0..8 {
                std::thread::sleep(Duration::from_millis(500));
                writer.write_all(b"x").expect("read");
            }
            writer
        });
        let mut watched = Watched(&mut reader, waiting);
        for _ in 0..8 {
            watched.read_exact(&mut [0]).expect("written");
        }
        assert!(gave_up.try_recv().is_err(), "a peer that talks was given up");
        let silent = talker.join().expect("ended");
        let end = std::thread::spawn(move || {
            gave_up.recv_timeout(Duration::from_secs(60)).expect("a silent peer was waited for");
            drop(silent);
        });
        assert_eq!(watched.read(&mut [0]).expect("ended"), 0);
        end.join().expect("given up");
    }
}
