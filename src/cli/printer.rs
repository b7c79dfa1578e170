//! Where words go: data to standard output, progress and messages to standard error.

use std::io::{self, IsTerminal, Write};

use crate::report;

/// Output settings of one run.
#[derive(Debug, Clone, Copy)]
pub struct Printer {
    quiet: bool,
    colour_out: bool,
    colour_err: bool,
}

impl Printer {
    /// Colour only on terminals, and never with `NO_COLOR` or `TERM=dumb`.
    pub fn new(quiet: bool) -> Self {
        let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            quiet,
            colour_out: !forbidden && io::stdout().is_terminal(),
            colour_err: !forbidden && io::stderr().is_terminal(),
        }
    }

    /// Whether only data, warnings and errors are printed.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Returns when the reader of a pipe has gone away; never, where standard output is something else.
    pub async fn reader_gone(&self) {
        // Opened anew: the description that is shared with the caller must stay blocking.
        match tokio::net::unix::pipe::OpenOptions::new().open_sender("/proc/self/fd/1") {
            Ok(pipe) => drop(pipe.ready(tokio::io::Interest::ERROR).await),
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether standard output takes colour.
    pub fn colour(&self) -> bool {
        self.colour_out
    }

    /// Columns of standard output; 100 where it is no terminal or does not say.
    pub fn width(&self) -> usize {
        if !io::stdout().is_terminal() {
            return 100;
        }
        terminal_size::terminal_size().map_or(100, |(width, _)| usize::from(width.0)).clamp(60, 140)
    }

    /// Whether progress bars make sense: a terminal, and not `--quiet`.
    pub fn animates(&self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }

    /// Prints data. The text ends with a newline after this.
    pub fn data(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        if !text.ends_with('\n') && !text.is_empty() {
            out.write_all(b"\n")?;
        }
        out.flush()
    }

    /// Prints data without adding anything, for streamed answers.
    pub fn raw(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Prints what a model or an engine wrote, as it comes: no terminal is to obey it, and no file to hide it.
    pub fn foreign(&self, text: &str) -> io::Result<()> {
        self.raw(&report::clean(text))
    }

    /// Prints a message unless `--quiet`. A closed standard error is no failure. Here and below: words of nodes and
    /// engines may be in it.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(io::stderr().lock(), "{}", report::clean(text));
        }
    }

    /// Prints what is wrong with the input, also with `--quiet`.
    pub fn findings(&self, text: &str) {
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }

    /// Prints a warning, also with `--quiet`.
    pub fn warning(&self, text: &str) {
        let head = if self.colour_err { "\u{1b}[33mwarning:\u{1b}[0m" } else { "warning:" };
        let _ = writeln!(io::stderr().lock(), "{head} {}", report::clean(text));
    }

    /// Prints an error and its hint.
    pub fn error(&self, message: &str, hint: Option<&str>) {
        let mut err = io::stderr().lock();
        let head = if self.colour_err { "\u{1b}[31merror:\u{1b}[0m" } else { "error:" };
        let _ = writeln!(err, "{head} {}", report::clean(message));
        if let Some(hint) = hint {
            let _ = writeln!(err, "\nhint: {}", report::clean(hint));
        }
    }
}
