//! Interruptions: Ctrl-C, a termination request, a terminal that was closed. Looking ends at once; what changes nodes
//! finishes what is in flight, and ends at once when it is asked again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::exit::ExitCode;
use super::printer::Printer;

/// SIGHUP and SIGINT by number, as `/proc/self/status` counts them.
const HANGUP: u32 = 1;
const INTERRUPT: u32 = 2;

/// What this process does when it is asked to end.
pub struct Signals {
    careful: AtomicUsize,
    interrupt: watch::Sender<bool>,
}

impl Signals {
    /// Begins to listen; called inside the runtime.
    pub fn listen(printer: Printer) -> Arc<Self> {
        let this = Arc::new(Self { careful: AtomicUsize::new(0), interrupt: watch::Sender::new(false) });
        let ignored = ignored(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        // What the caller had ignored (nohup, a script's background job) stays ignored.
        let wanted = [
            (SignalKind::interrupt(), !is_set(ignored, INTERRUPT)),
            (SignalKind::terminate(), true),
            (SignalKind::hangup(), !is_set(ignored, HANGUP)),
        ];
        for kind in wanted.into_iter().filter(|(_, listen)| *listen).map(|(kind, _)| kind) {
            match signal(kind) {
                Ok(mut signals) => {
                    let this = Arc::clone(&this);
                    tokio::spawn(async move {
                        while signals.recv().await.is_some() {
                            this.asked_to_end(printer);
                        }
                    });
                }
                Err(error) => tracing::debug!(?kind, %error, "cannot be listened for"),
            }
        }
        this
    }

    /// Until the guard is dropped, the first signal only turns the receiver true.
    pub fn carefully(self: &Arc<Self>) -> Careful {
        self.careful.fetch_add(1, Ordering::SeqCst);
        Careful(Arc::clone(self))
    }

    fn asked_to_end(&self, printer: Printer) {
        let first = !self.interrupt.send_replace(true);
        if first && self.careful.load(Ordering::SeqCst) > 0 {
            printer.note("\nfinishing what is in flight; nothing more is begun (once more ends at once)");
        } else {
            std::process::exit(ExitCode::Interrupted as i32);
        }
    }
}

/// Something is in flight that should be finished.
pub struct Careful(Arc<Signals>);

impl Careful {
    /// Turns true at the first signal.
    pub fn interrupted(&self) -> watch::Receiver<bool> {
        self.0.interrupt.subscribe()
    }
}

impl Drop for Careful {
    fn drop(&mut self) {
        self.0.careful.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The mask of ignored signals in the text of `/proc/self/status`.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn is_set(mask: u64, signal: u32) -> bool {
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read_from_the_kernels_mask() {
        let mask = ignored("Name:\tflock\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0\n");
        assert!(is_set(mask, HANGUP) && !is_set(mask, INTERRUPT) && is_set(mask, 13));
        assert_eq!((ignored(""), ignored("SigIgn:\tx")), (0, 0));
    }
}
