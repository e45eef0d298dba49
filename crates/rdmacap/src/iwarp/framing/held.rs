//! What is held of a stream: bytes that are searched, or an FPDU that is not whole.

/// Bytes and pieces for which memory stays allocated.
const SMALL: usize = 256;
const FEW: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Held {
    /// The bytes, with zeros where some are missing.
    pub(super) bytes: Vec<u8>,
    /// Bytes that are missing behind those.
    tail: usize,
    /// Where bytes are missing.
    pub(super) gaps: Vec<(usize, usize)>,
    /// Whether the missing bytes were all cut off by the capture, rather than lost.
    pub(super) cut: bool,
    /// Where in `bytes` segments began.
    pub(super) starts: Vec<usize>,
    /// Frames of the capture, with their times: where in `bytes` each one's begin.
    pub(super) sources: Vec<(usize, u64, u64)>,
}

impl Held {
    /// Whether no byte is held.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// How much is held, with what is missing of it.
    pub(super) fn so_far(&self) -> usize {
        self.bytes.len() + self.tail
    }

    /// The same in bytes of memory.
    pub(super) fn weight(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.gaps) + size_of_val(&*self.starts) + size_of_val(&*self.sources)
    }

    /// Holds bytes of a frame; `start`: a segment begins with them.
    pub(super) fn put(&mut self, bytes: &[u8], frame: u64, time: u64, start: bool) {
        self.fill_tail();
        let place = self.bytes.len();
        if start {
            self.starts.push(place);
        }
        if self.sources.last().is_none_or(|source| source.1 != frame) {
            self.sources.push((place, frame, time));
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes are missing here: the capture `cut` them or lost them.
    pub(super) fn miss(&mut self, length: usize, cut: bool) {
        if length > 0 {
            let place = self.so_far();
            self.cut = if self.gaps.is_empty() { cut } else { self.cut && cut };
            self.gaps.push((place, place + length));
            self.tail += length;
        }
    }

    /// Holds zeros for what is missing at the end.
    pub(super) fn fill_tail(&mut self) {
        let tail = std::mem::take(&mut self.tail);
        self.bytes.resize(self.bytes.len() + tail, 0);
    }

    /// First and last frame, and the time of the first.
    pub(super) fn origin(&self) -> ((u64, u64), u64) {
        let (first, last) = (self.sources.first(), self.sources.last());
        let frame = |source: Option<&(usize, u64, u64)>| source.map_or(0, |source| source.1);
        ((frame(first), frame(last)), first.map_or(0, |source| source.2))
    }

    /// Holds nothing any more. What was taken of the bound on memory is returned, so most of the memory is as
    /// well.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(SMALL);
        self.tail = 0;
        self.gaps.clear();
        self.gaps.shrink_to(FEW);
        self.cut = false;
        self.starts.clear();
        self.starts.shrink_to(FEW);
        self.sources.clear();
        self.sources.shrink_to(FEW);
    }
}
