//! `rdmacap rpc`: the calls of RPC-over-RDMA, and their replies.

use std::io;

use rdmacap::rpc::{Exchange, Message, Placed, Rpc, RpcSink, procedure};
use rdmacap::{Connection, Finding};
use serde::Serialize;

use crate::files::{Files, named};
use crate::options::Options;
use crate::pcapng::Capture;
use crate::text::{Output, direction, duration, hex};
use crate::{Failure, input};

/// A call in JSON.
#[derive(Serialize)]
struct Line<'a> {
    conn: u32,
    from: String,
    xid: String,
    program: Option<u32>,
    version: Option<u32>,
    procedure: Option<u32>,
    took_us: Option<f64>,
    call: Option<Part<'a>>,
    reply: Option<Part<'a>>,
}

/// A message of it.
#[derive(Serialize)]
struct Part<'a> {
    frame: u64,
    len: usize,
    by_chunks: u64,
    incomplete: bool,
    placed: &'a str,
}

impl<'a> Part<'a> {
    fn new(message: &Message) -> Self {
        let placed = match message.placed {
            Placed::Exactly => "exactly",
            Placed::BehindLength => "behind-length",
            Placed::AtEnd => "at-end",
        };
        let &Message { frame, by_chunks, incomplete, .. } = message;
        Self { frame, len: message.bytes.len(), by_chunks, incomplete, placed }
    }
}

struct Calls<'a> {
    options: &'a Options,
    out: &'a Output,
    files: Option<Files>,
    /// For other tools: RPC over TCP.
    capture: Option<Capture>,
}

pub(crate) fn run(options: &Options, out: &Output) -> Result<u8, Failure> {
    let memory = options.config.memory;
    let files = options.folder.as_deref().map(Files::new).transpose()?;
    let capture = options.pcap.as_deref().map(|path| Capture::create(path, memory));
    let capture = of_capture(options, capture.transpose())?;
    out.line(&format!(
        "{:>4} {:<5} {:>10} {:>18} {:>15} {:>9} {:>9} {:>9}",
        "conn", "", "xid", "prog vers proc", "frames", "call", "reply", "took"
    ));
    let mut rpc = Rpc::new(Calls { options, out, files, capture }, memory);
    input::read(options, out, &mut rpc)?;
    let Calls { files, capture, .. } = rpc.sink;
    out.note(files.map_or(Ok(()), Files::finish));
    out.note(of_capture(options, capture.map_or(Ok(()), Capture::finish)));
    Ok(0)
}

/// What came of writing the capture, which is named if it is an error.
fn of_capture<T>(options: &Options, done: io::Result<T>) -> io::Result<T> {
    done.map_err(|error| {
        options.pcap.as_deref().map_or_else(|| error.kind().into(), |path| named(path, &error))
    })
}

impl Calls<'_> {
    /// Writes what is asked for of an exchange.
    fn write(&mut self, exchange: &Exchange) -> io::Result<()> {
        let &Exchange { connection, from, xid, ref call, ref reply } = exchange;
        for (name, side, message) in [("call", from, call), ("reply", from.other(), reply)] {
            let Some(message) = message else { continue };
            if let Some(files) = &mut self.files {
                files.write_fresh(&format!("{connection}-{from}-{xid:08x}-{name}"), &message.bytes)?;
            }
            if let Some(capture) = self.capture.as_mut().filter(|_| !message.incomplete) {
                of_capture(self.options, capture.message(connection, side, message))?;
            }
        }
        Ok(())
    }
}

impl RpcSink for Calls<'_> {
    fn connection(&mut self, connection: &Connection) {
        if let Some(capture) = &mut self.capture {
            capture.opened(connection);
        }
    }

    fn exchange(&mut self, exchange: &Exchange) {
        let &Exchange { connection: conn, from, xid, ref call, ref reply } = exchange;
        if !self.options.wants(conn) {
            return;
        }
        let asked = call.as_ref().and_then(|call| procedure(&call.bytes));
        let took =
            call.as_ref().zip(reply.as_ref()).map(|(call, reply)| reply.time.saturating_sub(call.time));
        self.out.json(&Line {
            conn,
            from: from.to_string(),
            xid: hex(xid),
            program: asked.map(|asked| asked.0),
            version: asked.map(|asked| asked.1),
            procedure: asked.map(|asked| asked.2),
            took_us: took.map(|took| took as f64 / 1e3),
            call: call.as_ref().map(Part::new),
            reply: reply.as_ref().map(Part::new),
        });
        let frame =
            |message: &Option<Message>| message.as_ref().map_or("?".into(), |found| found.frame.to_string());
        let length = |message: &Option<Message>| match message {
            Some(found) => format!("{}{}", found.bytes.len(), if found.incomplete { "!" } else { "" }),
            None => "-".to_owned(),
        };
        let line = format!(
            "{conn:>4} {:<5} {xid:>#10x} {:>18} {:>15} {:>9} {:>9} {:>9}",
            direction(from),
            asked.map_or(String::new(), |(program, version, procedure)| format!(
                "{program} {version} {procedure}"
            )),
            format!("{}-{}", frame(call), frame(reply)),
            length(call),
            length(reply),
            took.map_or_else(String::new, duration),
        );
        let whole = |message: &Option<Message>| message.as_ref().is_some_and(|found| !found.incomplete);
        if whole(call) && whole(reply) {
            self.out.line(&line)
        } else {
            self.out.bad(&line)
        }
        if self.out.is_well() {
            self.out.note(self.write(exchange));
        }
    }

    fn finding(&mut self, finding: &Finding) {
        self.out.bad(&format!("frame {}: {}", finding.frame, finding.text));
    }

    fn closed(&mut self, connection: u32) {
        if let Some(capture) = &mut self.capture {
            capture.closed(connection);
        }
    }
}
