//! `rdmacap rpc`: the calls of RPC-over-RDMA, and their replies.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use rdmacap::rpc::{Exchange, Message, Placed, Rpc, RpcSink, procedure};
use rdmacap::{Connection, Finding, Operation, Placement, Sink};
use serde::Serialize;

use crate::options::Options;
use crate::pcapng::Conversation;
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

/// Connections as they were reported, beside what follows them.
struct Followed<'a> {
    rpc: Rpc<Calls<'a>>,
}

struct Calls<'a> {
    options: &'a Options,
    out: &'a mut Output,
    connections: BTreeMap<u32, Connection>,
    /// For other tools: RPC over TCP.
    conversations: BTreeMap<u32, Conversation>,
    failed: Option<io::Error>,
}

pub(crate) fn run(options: &Options, out: &mut Output) -> Result<u8, Failure> {
    if let Some(folder) = &options.folder {
        std::fs::create_dir_all(folder)?;
    }
    out.line(&format!(
        "{:>4} {:<5} {:>10} {:>18} {:>15} {:>9} {:>9} {:>9}",
        "conn", "", "xid", "prog vers proc", "frames", "call", "reply", "took"
    ));
    let calls =
        Calls { options, out, connections: BTreeMap::new(), conversations: BTreeMap::new(), failed: None };
    let mut followed = Followed { rpc: Rpc::new(calls, options.config.memory) };
    input::read(options, &options.files, &mut followed)?;
    let calls = followed.rpc.sink;
    if let Some(error) = calls.failed {
        return Err(error.into());
    }
    if let Some(path) = &options.pcap {
        std::fs::write(path, crate::pcapng::merged(calls.conversations.into_values()))?;
    }
    Ok(0)
}

impl Sink for Followed<'_> {
    fn connection(&mut self, connection: &Connection) {
        self.rpc.sink.connections.insert(connection.id, connection.clone());
        self.rpc.connection(connection);
    }

    fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        self.rpc.bytes(placement, bytes);
    }

    fn sent(&mut self, operation: &Operation) {
        self.rpc.sent(operation);
    }

    fn ended(&mut self, operation: &Operation) {
        self.rpc.ended(operation);
    }

    fn closed(&mut self, connection: u32) {
        self.rpc.closed(connection);
    }
}

impl Calls<'_> {
    /// A file for each message.
    fn write(&self, folder: &Path, exchange: &Exchange) -> io::Result<()> {
        for (name, message) in [("call", &exchange.call), ("reply", &exchange.reply)] {
            if let Some(message) = message {
                let file =
                    format!("{}-{}-{:08x}-{name}.bin", exchange.connection, exchange.from, exchange.xid);
                std::fs::write(folder.join(file), &message.bytes)?;
            }
        }
        Ok(())
    }
}

impl RpcSink for Calls<'_> {
    fn exchange(&mut self, exchange: &Exchange) {
        let &Exchange { connection: conn, from, xid, ref call, ref reply } = exchange;
        if self.options.connection.is_some_and(|wanted| wanted != conn) {
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
        if let Some(folder) = &self.options.folder
            && let Err(error) = self.write(folder, exchange)
        {
            self.failed.get_or_insert(error);
        }
        if self.options.pcap.is_some()
            && let Some(connection) = self.connections.get(&conn)
        {
            let conversation =
                self.conversations.entry(conn).or_insert_with(|| Conversation::new(connection));
            for (side, message) in [(from, call), (from.other(), reply)] {
                if let Some(message) = message.as_ref().filter(|message| !message.incomplete) {
                    conversation.message(side, message);
                }
            }
        }
    }

    fn finding(&mut self, finding: &Finding) {
        self.out.bad(&format!("frame {}: {}", finding.frame, finding.text));
    }
}
