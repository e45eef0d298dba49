//! Hubs: every message arrives once, in order and unchanged, or the connection reports its end.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use rdma_testkit::faulty::Plan;
use rdma_testkit::sim::Config;
use rdma_verbs::typed::messages::{Event, Hub, Message, Options, Peer, Reason, Ticket};
use rdma_verbs::typed::{End, Error, Shard, TrustedDevice};
use rdma_verbs::{Access, BreakReason, ConnectError, iwarp};

use super::support::{LIMIT, Random, any_port, poll, settle, simulated, until};

const SEEDS: u64 = if cfg!(debug_assertions) { 150 } else { 1_500 };
const MESSAGES: u64 = 30;

/// Small enough that every limit is reached.
fn options(random: &mut Random) -> Options {
    let eager = *random.pick(&[12, 20, 64]);
    Options {
        eager,
        longest: eager.max(*random.pick(&[12, 200, 3_000])),
        window: *random.pick(&[1, 2, 3, 8]),
        offers: *random.pick(&[1, 2, 3]),
        queue: *random.pick(&[1, 2, 5]),
    }
}

/// The bytes of a message: they differ from message to message.
fn bytes(side: usize, number: u64, length: usize) -> Vec<u8> {
    let first = number.wrapping_mul(31).wrapping_add(side as u64 * 7);
    (0..length as u64).map(|at| first.wrapping_add(at * 3) as u8).collect()
}

/// A side's program: it sends so many messages, and checks those of the other side.
struct Program<D: TrustedDevice> {
    side: usize,
    hub: Hub<D>,
    peer: Option<Peer>,
    /// Longest message that the other side takes.
    longest: u32,
    /// Lengths of the messages that were sent.
    lengths: Vec<usize>,
    tickets: BTreeSet<Ticket>,
    arrived: usize,
    held: Vec<Message<D>>,
    reason: Option<Reason>,
}

impl<D: TrustedDevice> Program<D> {
    fn new(side: usize, shard: &Shard<D>, options: Options, longest: u32) -> Self {
        Self {
            side,
            hub: Hub::new(shard, options).unwrap(),
            peer: None,
            longest,
            lengths: Vec::new(),
            tickets: BTreeSet::new(),
            arrived: 0,
            held: Vec::new(),
            reason: None,
        }
    }

    fn send(&mut self, random: &mut Random) {
        let Some(peer) = self.peer.filter(|_| (self.lengths.len() as u64) < MESSAGES) else { return };
        let length = random.below(u64::from(self.longest) + 1) as usize;
        let number = self.lengths.len() as u64;
        if let Ok(ticket) = self.hub.send(peer, &bytes(self.side, number, length)) {
            self.lengths.push(length);
            self.tickets.insert(ticket);
        }
    }

    /// Takes an event. `sent` has the lengths of the other side's messages.
    fn take(&mut self, event: Event<D>, random: &mut Random, sent: &[usize]) {
        match event {
            Event::Request(request) => {
                assert_eq!(request.private_data(), b"from the client");
                assert!(self.peer.is_none());
                let _ = self.hub.accept(request, b"from the server");
            }
            Event::Established { peer, private_data } => {
                let expected = [&b"from the server"[..], b"from the client"][self.side];
                assert_eq!(private_data, expected);
                self.peer = Some(peer);
            }
            Event::Sent { ticket, .. } => assert!(self.tickets.remove(&ticket), "{ticket:?} once"),
            Event::Message { message, .. } => {
                let expected = bytes(1 - self.side, self.arrived as u64, sent[self.arrived]);
                assert!(*message == expected, "message {}: {} bytes", self.arrived, message.len());
                self.arrived += 1;
                self.held.push(message);
                self.release(random);
            }
            Event::Disconnected { reason, .. } => {
                assert!(self.reason.is_none());
                self.reason = Some(reason);
            }
        }
    }

    /// Drops some of the messages that it holds.
    fn release(&mut self, random: &mut Random) {
        if !self.held.is_empty() && random.below(3) > 0 {
            let at = random.below(self.held.len() as u64) as usize;
            drop(self.held.swap_remove(at));
        }
    }

    fn is_done(&self, sent: &[usize]) -> bool {
        self.lengths.len() as u64 == MESSAGES && self.tickets.is_empty() && self.arrived == sent.len()
    }
}

/// Two programs that send each other messages, until all have arrived or the connection has ended.
fn exchange<D: TrustedDevice>(shards: [Shard<D>; 2], random: &mut Random) -> [Program<D>; 2] {
    let options = [options(random), options(random)];
    let [first, second] = &shards;
    let mut programs = [
        Program::new(0, first, options[0], options[1].longest),
        Program::new(1, second, options[1], options[0].longest),
    ];
    let address = programs[1].hub.listen(any_port(), 4).unwrap();
    programs[0].hub.connect(address, b"from the client").unwrap();
    let deadline = Instant::now() + LIMIT;
    loop {
        let side = random.below(2) as usize;
        let sent = programs[1 - side].lengths.clone();
        match random.below(4) {
            0 => programs[side].send(random),
            1 => programs[side].release(random),
            2 => _ = shards[side].drive().unwrap(),
            _ => {
                if let Some(event) = poll(&mut programs[side].hub.next()) {
                    programs[side].take(event, random, &sent);
                }
            }
        }
        let lengths = programs.each_ref().map(|program| program.lengths.clone());
        if programs.iter().all(|program| program.is_done(&lengths[1 - program.side]))
            || programs.iter().all(|program| program.reason.is_some())
        {
            return programs;
        }
        assert!(Instant::now() < deadline, "it stands still: {lengths:?}");
    }
}

fn for_seeds(what: fn(u64, &Config)) {
    let configs = [
        Config { wire: 1, ..Config::iwarp() },
        Config { wire: 2, ..Config::infiniband() },
        Config { inline: 0, arming: true, ..Config::iwarp() },
    ];
    for config in configs {
        for seed in 0..SEEDS {
            if let Err(panic) = std::panic::catch_unwind(|| what(seed, &config)) {
                eprintln!("seed {seed}, {config:?}");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

#[test]
fn every_message_arrives_once_in_order_and_unchanged() {
    for_seeds(|seed, config| {
        let shards = simulated(config, &Plan::nuisances(seed));
        let programs = exchange(shards, &mut Random(seed));
        for program in &programs {
            assert!(program.reason.is_none(), "{:?}", program.reason);
            assert_eq!(program.arrived as u64, MESSAGES);
        }
    });
}

/// What arrived before the end is the beginning of what was sent: `Program::take` checks it.
#[test]
fn a_connection_that_ends_says_so() {
    let (mut ended, mut messages) = (0, 0);
    for config in [Config { wire: 1, ..Config::iwarp() }, Config::infiniband()] {
        for seed in 0..SEEDS {
            let plan = Plan { break_connection: 2, end_connection: 2, ..Plan::nuisances(seed) };
            let programs = exchange(simulated(&config, &plan), &mut Random(seed));
            ended += u64::from(programs.iter().all(|program| program.reason.is_some()));
            messages += programs.iter().map(|program| program.arrived as u64).sum::<u64>();
        }
    }
    assert!(ended > SEEDS && messages > 10 * SEEDS, "{ended} connections ended, {messages} messages arrived");
}

#[test]
fn messages_go_over_the_embedded_device() {
    for seed in 0..40 {
        let shards = [(); 2].map(|()| Shard::new(iwarp::Device::default()).unwrap());
        for program in exchange(shards, &mut Random(seed)) {
            assert!(program.reason.is_none(), "{:?}", program.reason);
        }
    }
}

/// Two connected hubs, and their connections.
fn hubs<D: TrustedDevice>(shards: [&Shard<D>; 2], options: Options) -> [(Hub<D>, Peer); 2] {
    let [mut first, mut second] = shards.map(|shard| Hub::new(shard, options).unwrap());
    let address = second.listen(any_port(), 4).unwrap();
    let peer = first.connect(address, b"").unwrap();
    let mut other = None;
    until(shards, "a connection", || {
        match poll(&mut second.next()) {
            Some(Event::Request(request)) => other = Some(second.accept(request, b"").unwrap()),
            Some(Event::Established { .. }) | None => {}
            Some(event) => panic!("{event:?}"),
        }
        poll(&mut first.next()).map(|event| assert!(matches!(event, Event::Established { .. })))
    });
    [(first, peer), (second, other.unwrap())]
}

/// The next event of a hub. Both shards are driven.
fn event<D: TrustedDevice>(shards: [&Shard<D>; 2], hub: &mut Hub<D>) -> Event<D> {
    until(shards, "an event", || poll(&mut hub.next()).filter(|event| !matches!(event, Event::Sent { .. })))
}

const OPTIONS: Options = Options { eager: 64, longest: 10_000, window: 4, offers: 2, queue: 4 };

#[test]
fn an_orderly_end_comes_after_everything_that_was_sent() {
    for config in [Config { wire: 1, ..Config::iwarp() }, Config::infiniband()] {
        let shards = simulated(&config, &Plan::none());
        let both = [&shards[0], &shards[1]];
        let [(mut first, peer), (mut second, _)] = hubs(both, OPTIONS);
        for length in [10, 10_000, 9_999, 0] {
            first.send(peer, &bytes(0, 0, length)).unwrap();
        }
        first.disconnect(peer);
        let error = first.send(peer, b"late").unwrap_err();
        assert_eq!(error.to_string(), "queue pair is ending: sending a message is not possible");
        for length in [10, 10_000, 9_999, 0] {
            // The first hub goes on.
            let event = until(both, "a message", || {
                assert!(poll(&mut first.next()).is_none_or(|event| matches!(event, Event::Sent { .. })));
                poll(&mut second.next()).filter(|event| !matches!(event, Event::Established { .. }))
            });
            let Event::Message { message, .. } = event else { panic!("{event:?}") };
            assert!(*message == bytes(0, 0, length));
        }
        let mut reasons = [None, None];
        until(both, "the ends", || {
            for (hub, reason) in [&mut first, &mut second].into_iter().zip(&mut reasons) {
                if let Some(Event::Disconnected { reason: found, .. }) = poll(&mut hub.next()) {
                    *reason = Some(found);
                }
            }
            reasons.iter().all(Option::is_some).then_some(())
        });
        for reason in reasons {
            assert!(matches!(reason, Some(Reason::Ended(End::Disconnected))), "{reason:?}");
        }
    }
}

#[test]
fn a_program_that_holds_messages_stops_its_peer_only() {
    let shards = simulated(&Config::iwarp(), &Plan::none());
    let both = [&shards[0], &shards[1]];
    let [(mut first, peer), (mut second, other)] = hubs(both, OPTIONS);
    let mut held = Vec::new();
    let mut sent = 0;
    let mut count = |first: &mut Hub<_>, second: &mut Hub<_>, held: &mut Vec<_>| {
        settle_hubs(both, first, second, |first| sent += u32::from(first.send(peer, b"again").is_ok()), held);
        sent
    };
    // What the window allows is held, and as many more as the queue has places wait.
    assert_eq!(count(&mut first, &mut second, &mut held), OPTIONS.queue + u32::from(OPTIONS.window));
    assert_eq!(held.len(), OPTIONS.window.into());
    let error = first.send(peer, b"again").unwrap_err();
    assert_eq!(error.to_string(), "queue of 4 entries has room for 0, not for 1");
    // The other direction is free.
    second.send(other, b"back").unwrap();
    let Event::Message { message, .. } = event(both, &mut first) else { panic!() };
    assert_eq!(&*message, b"back");
    // One message that is dropped lets one more come.
    held.pop();
    count(&mut first, &mut second, &mut held);
    assert_eq!(held.len(), OPTIONS.window.into());
}

/// Runs both hubs until they are quiet; `send` is called in between.
fn settle_hubs<D: TrustedDevice>(
    shards: [&Shard<D>; 2],
    first: &mut Hub<D>,
    second: &mut Hub<D>,
    mut send: impl FnMut(&mut Hub<D>),
    held: &mut Vec<Message<D>>,
) {
    let mut quiet = 0;
    until(shards, "quiet", || {
        send(first);
        for hub in [&mut *first, &mut *second] {
            match poll(&mut hub.next()) {
                Some(Event::Message { message, .. }) => held.push(message),
                Some(Event::Disconnected { reason, .. }) => panic!("{reason}"),
                _ => {}
            }
        }
        quiet += 1;
        (quiet > 200).then_some(())
    });
}

/// The message that it answers is dropped, which sends a credit. While the device has that, it may refuse the
/// answer. After that, nothing else happens on the connection.
#[test]
fn an_answer_that_is_refused_at_first_is_reported_as_sent() {
    for seed in 0..200 {
        let plan = Plan { seed, queue_full: 700, ..Plan::none() };
        let shards = simulated(&Config::infiniband(), &plan);
        let both = [&shards[0], &shards[1]];
        let [(mut first, peer), (mut second, other)] = hubs(both, Options { window: 1, ..OPTIONS });
        first.send(peer, b"question").unwrap();
        let question = event(both, &mut second);
        let question = match question {
            Event::Established { .. } => event(both, &mut second),
            question => question,
        };
        drop(question);
        assert!(poll(&mut second.next()).is_none(), "it sends a credit");
        let answer = second.send(other, b"answer").unwrap();
        let mut held = Vec::new();
        until(both, "the report", || {
            held.extend(poll(&mut first.next()));
            poll(&mut second.next()).map(|event| match event {
                Event::Sent { ticket, .. } => assert_eq!(ticket, answer),
                event => panic!("{event:?}"),
            })
        });
    }
}

#[test]
fn a_region_is_read_where_it_is() {
    let shards = simulated(&Config::infiniband(), &Plan::none());
    let both = [&shards[0], &shards[1]];
    let [(mut first, peer), (mut second, _)] = hubs(both, OPTIONS);
    let region = shards[0].region(6_000, Access::REMOTE_READ).unwrap();
    region.write(0, &bytes(0, 0, 6_000)).unwrap();
    for range in [0..6_000, 100..5_000, 3..9] {
        let ticket = first.send_region(peer, &region, range.clone()).unwrap();
        let found = until(both, "a message", || {
            assert!(poll(&mut first.next()).is_none());
            poll(&mut second.next()).filter(|event| !matches!(event, Event::Established { .. }))
        });
        let Event::Message { message, .. } = found else { panic!("{found:?}") };
        assert!(*message == bytes(0, 0, 6_000)[range]);
        let sent = until(both, "an event", || poll(&mut first.next()));
        assert!(matches!(sent, Event::Sent { ticket: found, .. } if found == ticket));
    }
    let private = shards[0].region(100, Access::REMOTE_WRITE).unwrap();
    let error = first.send_region(peer, &private, 0..100).unwrap_err();
    assert!(matches!(error, Error::MissingRights { .. }), "{error}");
    let foreign = shards[1].region(100, Access::REMOTE_READ).unwrap();
    let error = first.send_region(peer, &foreign, 0..100).unwrap_err();
    assert!(matches!(error, Error::ForeignMemory { .. }), "{error}");
    assert!(matches!(first.send_region(peer, &region, 5_999..6_001), Err(Error::OutOfBounds(_))));
    let error = first.send(peer, &[0; 10_001]).unwrap_err();
    assert_eq!(error.to_string(), "message length of 10001 is outside 0 to 10000");
}

/// A task that waits for a hub is woken for what it can take, and is left alone otherwise.
#[test]
fn an_idle_hub_wakes_nobody() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let shards = [(); 2].map(|()| Shard::new(iwarp::Device::default()).unwrap());
    let both = [&shards[0], &shards[1]];
    let [(mut first, peer), (mut second, _)] = hubs(both, OPTIONS);
    settle_hubs(both, &mut first, &mut second, |_| (), &mut Vec::new());
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let is_ready =
        |hub: &mut Hub<_>| Pin::new(&mut hub.next()).poll(&mut Context::from_waker(&waker)).is_ready();
    for _ in 0..5 {
        assert!(!is_ready(&mut second));
        settle(both);
    }
    assert_eq!(count.0.load(Ordering::Relaxed), 0);
    first.send(peer, b"wake up").unwrap();
    settle(both);
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert!(is_ready(&mut second));
}

#[test]
fn attempts_end_with_an_event() {
    let shards = simulated(&Config::infiniband(), &Plan::none());
    let both = [&shards[0], &shards[1]];
    let [mut first, mut second] = [0, 1].map(|side| Hub::new(both[side], OPTIONS).unwrap());
    let address = second.listen(any_port(), 4).unwrap();
    let request = |first: &mut Hub<_>, second: &mut Hub<_>| {
        let peer = first.connect(address, b"").unwrap();
        assert!(first.send(peer, b"early").is_err());
        let Event::Request(request) = event(both, second) else { panic!() };
        (peer, request)
    };
    let end_of = |first: &mut Hub<_>, expected: Peer| {
        let Event::Disconnected { peer, reason: Reason::Ended(end) } = event(both, first) else { panic!() };
        assert_eq!(peer, expected);
        end
    };
    let (peer, unanswered) = request(&mut first, &mut second);
    drop(unanswered);
    assert!(matches!(end_of(&mut first, peer), End::Rejected { .. }));
    let (peer, unwelcome) = request(&mut first, &mut second);
    unwelcome.reject(b"no");
    let End::Rejected { private_data } = end_of(&mut first, peer) else { panic!() };
    assert_eq!(&private_data[..2], b"no");
    let (peer, _given_up) = request(&mut first, &mut second);
    first.abort(peer);
    assert!(matches!(end_of(&mut first, peer), End::Broken(BreakReason::Aborted)));
    first.disconnect(peer);
    assert!(first.dispatch(Duration::ZERO).unwrap().is_none(), "it was the last event");
    let nobody = first.connect(([127, 0, 0, 1], 1).into(), b"").unwrap();
    assert!(matches!(end_of(&mut first, nobody), End::Failed(ConnectError::Refused)));
    let error = first.connect(address, &[0; 41]).unwrap_err();
    assert_eq!(error.to_string(), "private data length of 41 is outside 0 to 40");
}

#[test]
fn options_have_limits() {
    let [shard, _] = simulated(&Config::iwarp(), &Plan::none());
    let refused = |options| Hub::new(&shard, options).map(drop).unwrap_err().to_string();
    assert_eq!(refused(Options { eager: 11, ..OPTIONS }), "eager message of 11 is outside 12 to 10000");
    assert_eq!(refused(Options { longest: 63, ..OPTIONS }), "eager message of 64 is outside 12 to 63");
    let most = 1_u32 << 30;
    let error = refused(Options { longest: most + 1, ..OPTIONS });
    assert_eq!(error, format!("longest message of {} is outside 1 to {most}", most + 1));
    assert_eq!(refused(Options { window: 0, ..OPTIONS }), "window of 0 is outside 1 to 65535");
    assert_eq!(refused(Options { offers: 0, ..OPTIONS }), "number of offers of 0 is outside 1 to 255");
    assert_eq!(refused(Options { queue: 0, ..OPTIONS }), "queue of 0 is outside 1 to 1048576");
}
