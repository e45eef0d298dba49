//! What is going on, on standard error: one line that changes on a terminal, a line for each measurement
//! elsewhere.

use std::io::{IsTerminal, Write, stderr};

pub(crate) struct Progress {
    how: How,
    all: usize,
    begun: usize,
    current: String,
}

#[derive(PartialEq)]
enum How {
    Silent,
    Lines,
    OneLine,
}

/// Back to the beginning of the line, and nothing behind.
const CLEAR: &str = "\r\x1b[K";

impl Progress {
    pub(crate) fn new(quiet: bool, all: usize) -> Self {
        let how = match (quiet, stderr().is_terminal()) {
            (true, _) => How::Silent,
            (false, true) => How::OneLine,
            (false, false) => How::Lines,
        };
        Self { how, all, begun: 0, current: String::new() }
    }

    pub(crate) fn begin(&mut self, what: &str) {
        self.begun += 1;
        self.current = format!("[{}/{}] {what}", self.begun, self.all);
        if self.how == How::OneLine {
            self.show(&format!("{CLEAR}{}", self.current));
        }
    }

    pub(crate) fn done(&self, result: &str) {
        match self.how {
            How::Silent => {}
            How::Lines => self.show(&format!("{}: {result}\n", self.current)),
            How::OneLine => self.show(&format!(": {result}")),
        }
    }

    /// A failure is told in any case.
    pub(crate) fn failed(&self, what: &str) {
        let clear = if self.how == How::OneLine { CLEAR } else { "" };
        self.show(&format!("{clear}rstream-perf: {what}\n"));
    }

    pub(crate) fn end(&self) {
        if self.how == How::OneLine {
            self.show(CLEAR);
        }
    }

    fn show(&self, text: &str) {
        // Whoever closed standard error does not want to know.
        let _ = stderr().write_all(text.as_bytes());
    }
}
