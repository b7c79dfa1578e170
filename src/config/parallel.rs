//! Many files read at once. What comes out does not depend on how many threads there are.

use std::num::NonZero;
use std::thread;

use super::syntax::{self, Node};
use crate::base::Diagnostic;

/// The nodes of a file and its syntax errors.
pub(super) type Parsed = (Vec<Node>, Vec<Diagnostic>);

/// Stack of a thread: a file nests at most [`syntax::MAX_DEPTH`] blocks, which take a tenth of this in a debug build.
const STACK: usize = 8 << 20;
/// A thread is worth its start from this many bytes on.
const BYTES_PER_THREAD: usize = 64 << 10;
/// The most threads.
const MAX_THREADS: usize = 16;

/// Reads files; each with its name, in the order given.
pub(super) fn parse_all(files: &[(&str, &[u8])]) -> Vec<(String, Parsed)> {
    let parse = |(name, bytes): &(&str, &[u8])| ((*name).to_owned(), syntax::parse(name, bytes));
    let total: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = cores.min(MAX_THREADS).min(total / BYTES_PER_THREAD + 1);
    if threads < 2 || files.len() < 2 {
        return files.iter().map(parse).collect();
    }
    thread::scope(|scope| {
        let parts: Vec<_> = shares(files, total.div_ceil(threads))
            .into_iter()
            .map(|part| {
                let begin = thread::Builder::new().name("config".to_owned()).stack_size(STACK);
                (part, begin.spawn_scoped(scope, move || part.iter().map(parse).collect::<Vec<_>>()))
            })
            .collect();
        let mut out = Vec::with_capacity(files.len());
        for (part, started) in parts {
            match started {
                Ok(thread) => match thread.join() {
                    Ok(parsed) => out.extend(parsed),
                    Err(panic) => std::panic::resume_unwind(panic),
                },
                // No thread to be had: slower, and the same.
                Err(_) => out.extend(part.iter().map(parse)),
            }
        }
        out
    })
}

/// Cuts a list into runs of about as many bytes each.
fn shares<'s, 'f>(files: &'s [(&'f str, &'f [u8])], share: usize) -> Vec<&'s [(&'f str, &'f [u8])]> {
    let mut parts = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, (_, text)) in files.iter().enumerate() {
        bytes += text.len();
        if bytes >= share {
            parts.push(&files[start..=index]);
            (start, bytes) = (index + 1, 0);
        }
    }
    if start < files.len() {
        parts.push(&files[start..]);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_once_and_in_order() {
        let texts: Vec<String> =
            (0..300).map(|index| format!("node \"n{index}\" {{ hold \"{}\" }}\nx true", "y".repeat(1000))).collect();
        let names: Vec<String> = (0..300).map(|index| format!("{index}.kdl")).collect();
        let files: Vec<(&str, &[u8])> =
            names.iter().zip(&texts).map(|(name, text)| (name.as_str(), text.as_bytes())).collect();
        let all = parse_all(&files);
        assert_eq!(all.len(), 300);
        for (index, (name, (nodes, found))) in all.iter().enumerate() {
            assert_eq!((name.as_str(), nodes.len(), found.len()), (names[index].as_str(), 2, 1));
            assert_eq!(nodes[0].entries[0].text(), Some(format!("n{index}").as_str()));
        }
        for share in [1, 5000, 1 << 30] {
            assert_eq!(shares(&files, share).concat().len(), 300);
        }
    }

    #[test]
    fn the_deepest_file_fits_the_stack_of_a_thread() {
        let deep = format!("{}{}{}", "a {\n".repeat(64), " ".repeat(BYTES_PER_THREAD), "}\n".repeat(64));
        let files = [("a", deep.as_bytes()), ("b", deep.as_bytes()), ("c", deep.as_bytes())];
        assert!(parse_all(&files).iter().all(|(_, (nodes, found))| nodes.len() == 1 && found.is_empty()));
    }
}
