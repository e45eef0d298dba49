//! Tables for people.

use std::fmt::Write;

use rstream_sockets::statistics::{Connection, Counter, Path};

use crate::model::{Ends, Seen, Sight};
use crate::rate::{Rate, Rates};

/// Lines of cells. The first line names the columns.
struct Table {
    lines: Vec<Vec<String>>,
    /// Columns that begin on the left; the others are numbers.
    left: &'static [&'static str],
}

impl Table {
    fn new(columns: &[&str], left: &'static [&'static str]) -> Self {
        Self { lines: vec![columns.iter().map(ToString::to_string).collect()], left }
    }

    /// Aligned, each column as wide as its widest cell.
    fn text(&self) -> String {
        let mut widths = vec![0; self.lines[0].len()];
        for line in &self.lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        for line in &self.lines {
            let mut shown = String::new();
            for ((cell, width), column) in line.iter().zip(&widths).zip(&self.lines[0]) {
                let _ = match self.left.contains(&column.as_str()) {
                    true => write!(shown, "{cell:<width$}  "),
                    false => write!(shown, "{cell:>width$}  "),
                };
            }
            text += shown.trim_end();
            text.push('\n');
        }
        text
    }
}

const LEFT: [&str; 7] = ["PROGRAM", "LOCAL", "REMOTE", "PEER", "ROLE", "PATH", "WHY"];
const RATES: [&str; 3] = ["IN/s", "OUT/s", "CALLS/s"];

/// The counters of a column.
const COUNTED: [(&str, Counter); 12] = [
    ("RING-IN", Counter::RingReceivedBytes),
    ("CALLS", Counter::RingReceivedCalls),
    ("RING-OUT", Counter::RingSentBytes),
    ("CALLS", Counter::RingSentCalls),
    ("TCP-IN", Counter::TcpReceivedBytes),
    ("CALLS", Counter::TcpReceivedCalls),
    ("TCP-OUT", Counter::TcpSentBytes),
    ("CALLS", Counter::TcpSentCalls),
    ("RUNG", Counter::BellsRung),
    ("TAKEN", Counter::BellsTaken),
    ("PAID", Counter::LooksPaid),
    ("VAIN", Counter::LooksVain),
];

pub(crate) fn text(sight: &Sight, wanted: &[u32], rates: Option<&Rates>) -> String {
    let mut text = String::new();
    if sight.wanted(wanted).next().is_some() {
        text += &processes(sight, wanted, rates);
        text.push('\n');
        text += &connections(sight, wanted, rates);
    } else if wanted.is_empty() {
        text += "No process that may be read has a TCP connection under rstream-run.\n";
    }
    if wanted.is_empty() && !sight.hidden.is_empty() {
        let count = sight.hidden.len();
        let _ = writeln!(
            text,
            "\n{count} processes may not be read: they are other users', or protect themselves. Root may read all."
        );
    }
    text
}

fn processes(sight: &Sight, wanted: &[u32], rates: Option<&Rates>) -> String {
    let mut columns = vec!["PID", "PROGRAM", "OPEN", "CLOSED", "SHARED"];
    columns.extend(rates.iter().flat_map(|_| RATES));
    columns.extend(COUNTED.map(|(column, _)| column));
    columns.push("SLEEPS");
    let mut table = Table::new(&columns, &LEFT);
    for seen in sight.wanted(wanted) {
        let (open, closed) = seen.totals.connections();
        let is_shared = |connection: &&Connection| connection.path() == Path::SharedMemory;
        let shared = seen.connections.iter().filter(is_shared).count();
        let mut line = vec![seen.pid.to_string(), seen.program.clone()];
        line.extend([open, closed, shared as u64].map(|number| number.to_string()));
        line.extend(rates.iter().flat_map(|rates| rate(rates.process(seen))));
        let [paid, vain, sleeps] = seen.totals.waits;
        let waits = |counter| match counter {
            Counter::LooksPaid => paid,
            Counter::LooksVain => vain,
            Counter::Sleeps => sleeps,
            _ => 0,
        };
        let sum = |counter| seen.totals.count(counter).wrapping_add(waits(counter));
        line.extend(COUNTED.map(|(column, counter)| cell(column, sum(counter))));
        line.push(sum(Counter::Sleeps).to_string());
        table.lines.push(line);
    }
    table.text()
}

fn connections(sight: &Sight, wanted: &[u32], rates: Option<&Rates>) -> String {
    let mut columns = vec!["PID", "LOCAL", "REMOTE", "PEER", "ROLE", "PATH"];
    columns.extend(rates.iter().flat_map(|_| RATES));
    columns.extend(COUNTED.map(|(column, _)| column));
    columns.extend(["SLEEPS", "WINDOW", "WHY"]);
    let mut table = Table::new(&columns, &LEFT);
    let ends = sight.ends();
    for seen in sight.wanted(wanted) {
        for connection in &seen.connections {
            let mut line = names(seen, connection, &ends);
            line.extend(rates.iter().flat_map(|rates| rate(rates.connection(seen, connection))));
            line.extend(COUNTED.map(|(column, counter)| cell(column, connection.count(counter))));
            line.push(connection.count(Counter::Sleeps).to_string());
            line.push(size(connection.count(Counter::Window)));
            line.push(match connection.path() {
                Path::Undecided(why) | Path::Tcp(why) => why.to_owned(),
                Path::SharedMemory => String::new(),
            });
            table.lines.push(line);
        }
    }
    table.text()
}

/// What a connection is.
fn names(seen: &Seen, connection: &Connection, ends: &Ends<'_>) -> Vec<String> {
    let unknown = || "-".to_owned();
    let (local, remote) = match connection.ends {
        Some((own, peers)) => (own.to_string(), peers.to_string()),
        None => (unknown(), unknown()),
    };
    let peer = match (seen.peer(connection, ends), connection.peer) {
        (Some(peer), _) => format!("{}/{}", peer.pid, peer.program),
        (None, Some(pid)) => pid.to_string(),
        (None, None) => unknown(),
    };
    let role = if connection.is_active { "connect" } else { "listen" };
    let path = match connection.path() {
        Path::Undecided(_) => "tcp?",
        Path::SharedMemory => "shm",
        Path::Tcp(_) => "tcp",
    };
    vec![seen.pid.to_string(), local, remote, peer, role.to_owned(), path.to_owned()]
}

fn rate(rate: Option<Rate>) -> [String; 3] {
    match rate {
        Some(rate) => {
            let bytes = |bytes: f64| size(bytes as u64);
            [bytes(rate.received_bytes), bytes(rate.sent_bytes), format!("{:.0}", rate.calls)]
        }
        None => ["-", "-", "-"].map(str::to_owned),
    }
}

/// A count: bytes are shortened.
fn cell(column: &str, count: u64) -> String {
    if column.contains('-') { size(count) } else { count.to_string() }
}

/// Bytes, with three digits at least where they are shortened.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["K", "M", "G", "T", "P", "E"];
    let mut value = bytes as f64;
    let mut unit = "";
    for next in UNITS {
        // Before it would be shown with a digit more than fits.
        if value < 1023.5 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    match unit {
        "" => bytes.to_string(),
        _ if value < 9.995 => format!("{value:.2}{unit}"),
        _ if value < 99.95 => format!("{value:.1}{unit}"),
        _ => format!("{value:.0}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["PID", "PROGRAM", "CALLS", "WHY"], &LEFT);
        for line in [["1", "long name", "5", "because"], ["12345", "é", "1000000", ""]] {
            table.lines.push(line.map(str::to_owned).to_vec());
        }
        let expected =
            "  PID  PROGRAM      CALLS  WHY\n    1  long name        5  because\n12345  é          1000000\n";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn sizes_are_short() {
        for (bytes, expected) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.00K"),
            (16 << 10, "16.0K"),
            (512 << 10, "512K"),
            ((1 << 20) - 1, "1.00M"),
            (12_345_678, "11.8M"),
            (u64::MAX, "16.0E"),
        ] {
            assert_eq!(size(bytes), expected, "{bytes}");
        }
    }

    #[test]
    fn nothing_to_show_is_said() {
        let sight = Sight { processes: Vec::new(), hidden: vec![7, 8] };
        let text = text(&sight, &[], None);
        assert!(text.starts_with("No process") && text.contains("\n2 processes may not be read"), "{text}");
    }
}
