//! A capture as a whole: frames in, operations out.

use std::net::IpAddr;

use crate::context::{Budget, Context, Shared};
use crate::file::Record;
use crate::finding::Topic;
use crate::hash::{Host, host};
use crate::iwarp::Iwarp;
use crate::link::{self, Packet, Tcp};
use crate::operation::{Side, Sink};
use crate::roce::Roce;
use crate::table::Table;

/// What bounds a [`Session`], and what it checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Bytes of memory for packets and operations that wait for others, over all connections. Beyond it the
    /// oldest are given up, which a finding says. Beside it keys take at most a quarter as much, and each
    /// connection about 2 KiB.
    pub memory: usize,
    /// Most connections of each kind at a time. Beyond it those are ended that were not used for longest.
    pub connections: usize,
    /// Whether the invariant CRC of RoCE is checked. iWARP's checksums always are, where they are in use.
    pub check_icrc: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { memory: 64 << 20, connections: 1 << 14, check_icrc: true }
    }
}

/// Reads the frames of a capture in the order of their times.
#[derive(Debug)]
pub struct Session {
    config: Config,
    shared: Shared,
    budget: Budget,
    /// TCP connections, by their ends, the smaller one first.
    tcp: Table<(Port, Port), Slot>,
    roce: Roce,
    frame: u64,
    time: u64,
    fragments: u64,
}

type Port = (Host, u16);

fn port((address, port): (IpAddr, u16)) -> Port {
    (host(address), port)
}

#[derive(Debug)]
struct Slot {
    /// The end that is [`Side::A`].
    active: Port,
    /// `None`: it is not iWARP.
    iwarp: Option<Box<Iwarp>>,
    used: u64,
}

impl Session {
    /// A session at the beginning of a capture.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            shared: Shared::new(config.memory / 4),
            budget: Budget::new(config.memory),
            tcp: Table::default(),
            roce: Roce::new(config.connections.max(1), config.check_icrc),
            frame: 0,
            time: 0,
            fragments: 0,
        }
    }

    /// Takes queue pairs with these numbers as two ends of a connection, where no handshake says whose they
    /// are. Answers alone do not always show it.
    pub fn pair(&mut self, a: u32, b: u32) {
        self.roce.pair(a, b);
    }

    /// Frames so far; the last one's number.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frame
    }

    /// Takes the next frame.
    pub fn feed(&mut self, record: &Record<'_>, sink: &mut dyn Sink) {
        self.frame += 1;
        self.time = record.time;
        match &link::parse(record.link, record.bytes) {
            Some(Packet::Tcp(tcp)) => self.tcp(tcp, sink),
            Some(Packet::Transport(transport)) => {
                let (roce, mut context) = self.parts(sink);
                roce.packet(transport, &mut context);
            }
            Some(Packet::Fragment) => self.fragments += 1,
            None => {}
        }
    }

    /// The capture is over: reports what is still open.
    pub fn finish(mut self, sink: &mut dyn Sink) {
        let mut rest: Vec<_> = self.tcp.into_entries().collect();
        rest.sort_by_key(|(ends, _)| *ends);
        self.tcp = Table::default();
        let fragments = self.fragments;
        let (roce, mut context) = self.parts(sink);
        for mut iwarp in rest.into_iter().filter_map(|(_, slot)| slot.iwarp) {
            iwarp.finish(&mut context);
        }
        roce.finish(&mut context);
        if fragments > 0 {
            let text = format!("{fragments} fragments of IP packets were passed over");
            context.finding(Topic::Fragment, None, text);
        }
    }

    fn parts<'s>(&'s mut self, sink: &'s mut dyn Sink) -> (&'s mut Roce, Context<'s>) {
        let Self { shared, budget, roce, frame, time, .. } = self;
        (roce, Context { shared, sink, budget, frame: *frame, time: *time })
    }

    fn tcp(&mut self, tcp: &Tcp<'_>, sink: &mut dyn Sink) {
        let (source, destination) = (port(tcp.source), port(tcp.destination));
        let ends = if source <= destination { (source, destination) } else { (destination, source) };
        let opens = tcp.syn && tcp.acknowledgement.is_none();
        let Self { config, shared, budget, tcp: connections, frame, time, .. } = self;
        let mut context = Context { shared, sink, budget, frame: *frame, time: *time };
        // The same ports again, after an end that may not be in the capture.
        let anew = |slot: &Slot| slot.iwarp.as_ref().is_none_or(|iwarp| iwarp.begins_anew(tcp));
        if opens && connections.get_mut(&ends).as_deref().is_some_and(anew) {
            let slot = connections.remove(&ends);
            slot.and_then(|slot| slot.iwarp).into_iter().for_each(|mut iwarp| iwarp.finish(&mut context));
        }
        let slot = match connections.get_mut(&ends) {
            Some(slot) => slot,
            None => {
                if connections.len() >= config.connections.max(1) {
                    make_room(connections, config.connections, &mut context);
                }
                // Whoever is seen first is the active side, unless it accepts.
                let accepts = tcp.syn && !opens;
                let [active, passive] =
                    if accepts { [tcp.destination, tcp.source] } else { [tcp.source, tcp.destination] };
                let iwarp = Some(Box::new(Iwarp::new(tcp, [active, passive], &context)));
                connections.insert(ends, Slot { active: port(active), iwarp, used: 0 })
            }
        };
        slot.used = context.frame;
        let side = if slot.active == source { Side::A } else { Side::B };
        if let Some(iwarp) = &mut slot.iwarp {
            iwarp.segment(side, tcp, &mut context);
            if iwarp.is_foreign() {
                slot.iwarp = None;
            }
        }
    }
}

/// Ends the connections that were not used for longest.
fn make_room(connections: &mut Table<(Port, Port), Slot>, most: usize, context: &mut Context<'_>) {
    let mut used: Vec<(u64, (Port, Port))> =
        connections.iter().map(|(ends, slot)| (slot.used, *ends)).collect();
    used.sort_unstable();
    let mut given_up = 0;
    for (_, ends) in used.into_iter().take(most / 8 + 1) {
        if let Some(mut iwarp) = connections.remove(&ends).and_then(|slot| slot.iwarp) {
            given_up += u32::from(!iwarp.is_over());
            iwarp.finish(context);
        }
    }
    if given_up > 0 {
        let text = format!("{given_up} TCP connections were given up: more than {most} at a time");
        context.finding(Topic::GaveUp, None, text);
    }
}
