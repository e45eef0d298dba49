//! The statistics of this process as a text, for its end.
//!
//! Nothing here allocates: a process may end in a signal handler.

use std::fmt::{self, Write};

use super::layout::Counter;
use super::process::own;
use super::view::{Kind, Path, Process, totals};

/// A line for the process and one for each kind of its connections.
pub struct Summary<'a>(&'a Process);

/// Hands the lines of this process's statistics to `write`, if it has had a connection.
pub fn write_summary(mut write: impl FnMut(&str)) {
    if let Some(process) = own().map(totals).filter(|process| process.connections() != (0, 0)) {
        let mut buffer = Buffer { bytes: [0; LENGTH], length: 0 };
        // What does not fit is left out.
        let _ = write!(buffer, "{}", Summary(&process));
        write(buffer.text());
    }
}

const LENGTH: usize = 8 << 10;

struct Buffer {
    bytes: [u8; LENGTH],
    length: usize,
}

impl Buffer {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl Write for Buffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

impl<'a> From<&'a Process> for Summary<'a> {
    fn from(process: &'a Process) -> Self {
        Self(process)
    }
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = self.0;
        let (open, closed) = process.connections();
        let own = [Counter::LooksPaid, Counter::LooksVain, Counter::Sleeps].map(|at| process.count(at));
        let [paid, vain, sleeps] = std::array::from_fn(|at| own[at].wrapping_add(process.waits[at]));
        writeln!(
            f,
            "rstream[{}]: {} connections; bells rung {}, taken {}; looks that paid {}, in vain {}; sleeps {}",
            process.process,
            open + closed,
            process.count(Counter::BellsRung),
            process.count(Counter::BellsTaken),
            paid,
            vain,
            sleeps
        )?;
        for kind in process.kinds() {
            write!(f, "rstream[{}]: ", process.process)?;
            write_kind(f, kind)?;
        }
        if process.uncounted > 0 {
            writeln!(f, "rstream[{}]: {} connections were not counted", process.process, process.uncounted)?;
        }
        Ok(())
    }
}

fn write_kind(f: &mut fmt::Formatter<'_>, kind: &Kind) -> fmt::Result {
    let count = |counter| kind.count(counter);
    write!(f, "{} {}", kind.open + kind.closed, kind.path())?;
    for (way, [received, calls_in, sent, calls_out]) in [
        (
            "ring",
            [
                Counter::RingReceivedBytes,
                Counter::RingReceivedCalls,
                Counter::RingSentBytes,
                Counter::RingSentCalls,
            ],
        ),
        (
            "TCP",
            [
                Counter::TcpReceivedBytes,
                Counter::TcpReceivedCalls,
                Counter::TcpSentBytes,
                Counter::TcpSentCalls,
            ],
        ),
    ] {
        if count(calls_in) + count(calls_out) > 0 {
            write!(
                f,
                "; by {way} received {} bytes in {} calls, sent {} in {}",
                count(received),
                count(calls_in),
                count(sent),
                count(calls_out)
            )?;
        }
    }
    writeln!(f)
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undecided("") => f.write_str("TCP so far"),
            Self::Undecided(reason) => write!(f, "TCP so far: {reason}"),
            Self::SharedMemory => f.write_str("shared memory"),
            Self::Tcp("") => f.write_str("TCP"),
            Self::Tcp(reason) => write!(f, "TCP: {reason}"),
        }
    }
}
