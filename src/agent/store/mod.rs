//! Weights on disk: a set of files is a folder `ROOT/NAME`, and what they hold lies once under their digests.
//!
//! ```text
//! ROOT/NAME/FILE                    once its digest was checked; FILE.part on the way
//! ROOT/NAME/.flock-complete.json    every file of the set is there and had its digest
//! ROOT/NAME/.flock-received.json    until then: which digests were found, and when the file had last been written
//! ROOT/.flock-blobs/AA/SHA256       the same file again, as a hard link (AA: the first two digits)
//! ROOT/.flock-users/…               which cluster and node brought which set
//! ```
//!
//! A file that merely has the right name and size is not taken for the right one, and one that was written to since is
//! read again. Where a file system refuses hard links (exFAT, some FUSE and SMB mounts), the blob is the file and the
//! set holds a relative symbolic link to it. A file of a Hugging Face cache on this node is linked to, never copied,
//! changed or removed. Nobody removes anything but `collect`.

mod blobs;
mod cache;
mod collect;
mod receive;
mod records;
mod references;
mod sets;
mod users;

pub use collect::{Collect, collect};
pub use receive::{Arriving, accept, open_part, put};
pub use records::{absent, check, has, marked, part};
pub use sets::{check_disk, done, fetched, found, is_complete, linked, missing, state};
pub use users::claim;

#[cfg(test)]
mod collect_tests;
#[cfg(test)]
mod tests;

#[cfg(test)]
use records::COMPLETE;
