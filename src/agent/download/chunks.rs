//! Which bytes of a file are there, and which piece is to be asked for next.

use std::ops::Range;

use super::record::{CHUNK, chunk_length, chunks};

/// A file's chunks: each is there from its begin on, and one connection at a time brings its rest.
#[derive(Debug)]
pub struct Chunks {
    size_bytes: u64,
    counts: Vec<u32>,
    taken: Vec<bool>,
    have_bytes: u64,
    /// Chunks before this one are whole.
    first: usize,
}

impl Chunks {
    /// With what the record says is there.
    pub fn new(size_bytes: u64, counts: Vec<u32>) -> Self {
        debug_assert_eq!(counts.len() as u64, chunks(size_bytes));
        let have_bytes = counts.iter().map(|count| u64::from(*count)).sum();
        let taken = vec![false; counts.len()];
        Self { size_bytes, counts, taken, have_bytes, first: 0 }
    }

    /// The first chunk that is not whole and that nobody brings, with the bytes that it lacks.
    pub fn take(&mut self) -> Option<(u64, Range<u64>)> {
        self.skip();
        let free = (self.first..self.counts.len()).find(|at| !self.taken[*at] && !self.is_whole_chunk(*at))?;
        self.taken[free] = true;
        let begin = free as u64 * u64::from(CHUNK);
        let to = begin + u64::from(chunk_length(self.size_bytes, free as u64));
        Some((free as u64, begin + u64::from(self.counts[free])..to))
    }

    /// Nobody brings this chunk any more.
    pub fn give_back(&mut self, chunk: u64) {
        if let Some(taken) = self.taken.get_mut(chunk as usize) {
            *taken = false;
        }
    }

    /// So much of a chunk is there.
    pub fn set(&mut self, chunk: u64, count: u32) {
        if let Some(known) = self.counts.get_mut(chunk as usize) {
            self.have_bytes += u64::from(count.saturating_sub(*known));
            *known = count.max(*known);
        }
    }

    /// Bytes that are there.
    pub fn have_bytes(&self) -> u64 {
        self.have_bytes
    }

    /// Bytes that are there without a gap.
    pub fn prefix(&mut self) -> u64 {
        self.skip();
        let next = self.counts.get(self.first).copied().unwrap_or(0);
        (self.first as u64 * u64::from(CHUNK) + u64::from(next)).min(self.size_bytes)
    }

    /// Whether every byte is there.
    pub fn is_whole(&self) -> bool {
        self.have_bytes == self.size_bytes
    }

    fn is_whole_chunk(&self, at: usize) -> bool {
        self.counts[at] == chunk_length(self.size_bytes, at as u64)
    }

    fn skip(&mut self) {
        while self.first < self.counts.len() && self.is_whole_chunk(self.first) {
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const C: u64 = CHUNK as u64;

    #[test]
    fn what_is_missing_is_handed_out_once_and_in_order() {
        let mut chunks = Chunks::new(2 * C + 10, vec![CHUNK, 7, 0]);
        assert_eq!((chunks.have_bytes(), chunks.prefix()), (C + 7, C + 7));
        assert_eq!(chunks.take(), Some((1, C + 7..2 * C)));
        assert_eq!(chunks.take(), Some((2, 2 * C..2 * C + 10)));
        assert_eq!(chunks.take(), None);
        chunks.set(2, 10);
        assert_eq!((chunks.prefix(), chunks.is_whole()), (C + 7, false));
        chunks.set(1, 100);
        chunks.give_back(1);
        assert_eq!(chunks.take(), Some((1, C + 100..2 * C)));
        chunks.set(1, CHUNK);
        assert_eq!((chunks.prefix(), chunks.is_whole(), chunks.have_bytes()), (2 * C + 10, true, 2 * C + 10));
        chunks.give_back(1);
        assert_eq!(chunks.take(), None);
        // A later, smaller count is of somebody who began again.
        chunks.set(1, 5);
        assert!(chunks.is_whole());
    }

    #[test]
    fn an_empty_file_is_whole() {
        let mut chunks = Chunks::new(0, Vec::new());
        assert!(chunks.is_whole() && chunks.take().is_none() && chunks.prefix() == 0);
        chunks.give_back(3);
        chunks.set(3, 1);
        assert!(chunks.is_whole());
    }

    proptest! {
        /// Whatever order pieces arrive and are lost in, every byte is asked for until it is there.
        #[test]
        fn every_byte_comes(size in 0..(5 * C), steps in proptest::collection::vec((any::<u16>(), any::<bool>()), 0..40)) {
            let mut chunks = Chunks::new(size, vec![0; chunks(size) as usize]);
            let mut taken = Vec::new();
            for (number, whole) in steps {
                taken.extend(chunks.take());
                if taken.is_empty() {
                    continue;
                }
                let (chunk, bytes) = taken.swap_remove(usize::from(number) % taken.len());
                let part = if whole { bytes.end - bytes.start } else { (bytes.end - bytes.start) / 2 };
                chunks.set(chunk, u32::try_from(bytes.start + part - chunk * C).expect("within its chunk"));
                chunks.give_back(chunk);
                prop_assert!(chunks.prefix() <= chunks.have_bytes() && chunks.have_bytes() <= size);
            }
            for (chunk, _) in taken {
                chunks.give_back(chunk);
            }
            while let Some((chunk, bytes)) = chunks.take() {
                prop_assert!(bytes.start < bytes.end && bytes.end <= size);
                chunks.set(chunk, u32::try_from(bytes.end - chunk * C).expect("within its chunk"));
            }
            prop_assert!(chunks.is_whole() && chunks.prefix() == size);
        }
    }
}
