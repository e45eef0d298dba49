//! Calls of message endpoints in generated orders ([`calls`]), over simulated devices with faults, against a
//! [`model`] of what each call has to bring about. One seed determines all events.
//!
//! There are one or two connections between two sides. The endpoints of a side have one completion queue and,
//! in some runs, share their receives; both sides may even be in one domain. The devices follow iWARP's or
//! InfiniBand's rules, hold messages and completions back, refuse posts, and break connections.

mod calls;
mod model;

use rdma_testkit::faulty::{Faulty, Plan};
use rdma_testkit::random::{Random, for_each_seed};
use rdma_testkit::sim;

use super::application::{
    CompletionQueue, Counter, Domain, Endpoint, Event, EventQueue, Fabric, Listener, Region, is_readable,
};
use super::arena::Arena;
use crate::abi::{Errno, Info, sys};
use crate::provider::simulated;
use model::{Model, Seen};

/// Number of seeds.
const SEEDS: u64 = if cfg!(debug_assertions) { 500 } else { 10_000 };
const ARENA: usize = 1 << 20;
/// Longest message, and most bytes of remote access.
const LONGEST: usize = 1500;
/// Length of the part of a side's region that the peer of each connection writes to.
const WRITABLE: usize = 2048;
/// Length of a side's region. The second half is only read.
const WINDOW: usize = 4 * WRITABLE;
/// Most rounds until something that has to come has come.
const PATIENCE: usize = 5000;
/// Reads after which an entry is found, though the device holds completions back.
const LOOKS: usize = 8;
/// A key of no region.
const WRONG_KEY: u64 = 99;

/// The choices of a seed for a whole run.
struct Setting {
    config: sim::Config,
    plans: [Plan; 2],
    connections: usize,
    is_one_domain: bool,
    shares: [bool; 2],
    /// Whether only operations that request it are reported: of those that send, and of receives.
    is_selective: [bool; 2],
    /// Whether the application may sleep until a descriptor is readable.
    sleeps: bool,
    /// Whether the endpoints have counters.
    counts: bool,
    depth: usize,
    /// How many of 8 chances to post a receive are used.
    eagerness: usize,
    steps: usize,
}

impl Setting {
    fn new(seed: u64, random: &mut Random) -> Self {
        let is_infiniband = random.happens(300);
        let base = if is_infiniband { sim::Config::infiniband() } else { sim::Config::iwarp() };
        let config = sim::Config {
            immediate: if is_infiniband { 32 } else { 64 },
            inline: random.pick(&[0, 64, 4096]),
            wire: random.pick(&[1, 2, 64]),
            arming: random.happens(500),
            ..base
        };
        let nuisances = Plan { small_inline: 0, ..Plan::nuisances(seed) };
        let plan = match random.up_to(3) {
            0 | 1 => Plan::none(),
            2 => nuisances,
            _ => Plan { break_connection: 2, end_connection: 2, ..nuisances },
        };
        // What breaks at a call was no reason to wake the application before.
        let may_break = plan.break_connection > 0;
        let other = Plan { seed: seed ^ u64::MAX, ..plan.clone() };
        Self {
            config,
            plans: [plan, other],
            connections: 1 + random.up_to(1),
            is_one_domain: random.happens(300),
            shares: [random.happens(300), random.happens(300)],
            is_selective: [random.happens(200), random.happens(200)],
            sleeps: !may_break && random.happens(500),
            counts: random.happens(300),
            depth: random.pick(&[2, 8, 32]),
            eagerness: 1 + random.up_to(7),
            steps: random.pick(&[10, 80, 250]),
        }
    }
}

/// One side: the objects that its endpoints use.
struct Side {
    domain: Domain,
    completions: CompletionQueue,
    descriptor: Option<i32>,
    listener: Listener,
    shared: Option<Endpoint>,
    region: Region,
    /// The key by which peers name the region.
    key: u64,
    info: Info,
}

struct Run<'a> {
    random: Random,
    setting: Setting,
    inject: usize,
    fabric: Fabric,
    events: EventQueue,
    sides: Vec<Side>,
    /// The endpoints, as far as they are open. Endpoint `at` is on side `at % 2`, of connection `at / 2`.
    endpoints: Vec<Option<Endpoint>>,
    /// By endpoint: counters of what it sends, of what it receives, and of the accesses of its peer.
    counters: Vec<Option<[Counter; 3]>>,
    model: Model<'a>,
}

impl<'a> Run<'a> {
    fn new(seed: u64, arena: &'a mut Arena, seen: &'a mut Seen) -> Self {
        let mut random = Random::new(seed, 0);
        let setting = Setting::new(seed, &mut random);
        let network = sim::Fabric::new();
        let device = |plan: &Plan| Faulty::new(network.device(setting.config.clone()), plan.clone());
        let devices: Vec<_> = setting.plans.iter().map(device).collect();
        let fabric = Fabric::open(simulated::fabric(devices.clone()));
        let events = fabric.event_queue();
        arena.clear();
        let model = Model::new(arena, seen, &setting);
        let mut sides: Vec<Side> = Vec::new();
        for (side, device) in devices.iter().enumerate() {
            let info = simulated::info(side, device, setting.depth, setting.depth).unwrap();
            let first = sides.first().filter(|_| setting.is_one_domain).map(|first| first.domain);
            let domain = first.unwrap_or_else(|| fabric.domain(&info));
            let key = 10 + side as u64;
            let completions = domain.completion_queue(setting.sleeps);
            sides.push(Side {
                domain,
                completions,
                descriptor: setting.sleeps.then(|| completions.descriptor()),
                listener: fabric.listen(&info, events),
                shared: setting.shares[side].then(|| domain.shared_receive(setting.depth)),
                region: domain.region(model.arena, model.windows[side], key),
                key,
                info,
            });
        }
        let (inject, number) = (setting.config.inline.min(4096), 2 * setting.connections);
        let (endpoints, counters) = (vec![None; number], vec![None; number]);
        Self { random, setting, inject, fabric, events, sides, endpoints, counters, model }
    }

    fn connect(&mut self, connection: usize) {
        let active = 2 * connection + self.random.up_to(1);
        let passive = active ^ 1;
        // An endpoint is of the domain that its info names, unless both sides are in one.
        let side = &self.sides[active % 2];
        let endpoint = side.domain.endpoint(&side.info);
        self.prepare(active, endpoint);
        endpoint.connect(&self.sides[passive % 2].listener.address());
        for _ in 0..PATIENCE {
            match self.events.read() {
                Some(Event::Request(info)) => {
                    let endpoint = self.sides[passive % 2].domain.answer(info);
                    self.prepare(passive, endpoint);
                    endpoint.accept();
                }
                Some(event) => self.take_event(&event),
                None => {}
            }
            if [active, passive].iter().all(|&at| self.model.parties[at].has_answer) {
                return;
            }
        }
        panic!("connection {connection} is not established");
    }

    /// Binds and enables an endpoint. Receives may be posted from then on.
    fn prepare(&mut self, at: usize, endpoint: Endpoint) {
        let side = &self.sides[at % 2];
        endpoint.bind(self.events, side.completions, self.setting.is_selective);
        if let Some(shared) = side.shared {
            endpoint.share(shared);
        }
        if self.setting.counts {
            let counters = [side.domain.counter(), side.domain.counter(), side.domain.counter()];
            endpoint.count(counters[0], sys::FI_SEND | sys::FI_WRITE | sys::FI_READ);
            endpoint.count(counters[1], sys::FI_RECV);
            endpoint.count(counters[2], sys::FI_REMOTE_WRITE | sys::FI_REMOTE_READ);
            self.counters[at] = Some(counters);
        }
        endpoint.enable();
        self.endpoints[at] = Some(endpoint);
        for _ in 0..self.random.up_to(3) {
            self.receive(at, false);
        }
    }

    fn step(&mut self) {
        let at = self.random.up_to(self.endpoints.len() - 1);
        if self.model.arena.left() < ARENA / 2 {
            return self.read_entries(at % 2, 1);
        }
        match self.random.up_to(33) {
            0..=6 => self.send(at),
            7 | 8 => self.inject(at),
            9..=11 => self.write(at, false),
            12 => self.inject_write(at),
            13 | 14 => self.read(at, false),
            15 => self.cancel(at),
            16 if self.random.happens(30) => self.shut_down(at),
            17 if self.random.happens(30) => self.close(at),
            18 if self.random.happens(20) => self.read(at, true),
            18 if self.random.happens(20) => self.write(at, true),
            19..=24 if self.random.up_to(7) < self.setting.eagerness => self.receive(at, false),
            30 | 31 => self.read_events(),
            32 | 33 => self.sleep(at % 2),
            _ => {
                let most = 1 + self.random.up_to(3);
                self.read_entries(at % 2, most);
            }
        }
    }

    /// Cancels the shared receives that are left: none is lost.
    fn cancel_shared(&mut self) {
        for side in 0..2 {
            for context in self.model.shared_receives(side) {
                let shared = self.sides[side].shared.expect("a side that shares");
                assert_eq!(shared.cancel(context), Ok(()), "shared receive {context} is lost");
                self.model.cancelled(None, context);
            }
        }
    }

    fn shut_down(&mut self, at: usize) {
        let Some(endpoint) = self.endpoints[at] else { return };
        match endpoint.shut_down() {
            Ok(()) => self.model.parties[at].has_shut = true,
            Err(error) => assert!(error == Errno::ENOTCONN && self.model.may_fail(at), "{error:?}"),
        }
        self.model.ends(at);
    }

    /// Closes an endpoint. Everything that was posted is reported then, and no memory is used any more.
    fn close(&mut self, at: usize) {
        let Some(endpoint) = self.endpoints[at].take() else { return };
        self.model.ends(at);
        self.model.parties[at].is_closed = true;
        endpoint.close();
        self.read_entries(at % 2, usize::MAX);
        self.model.closed(at);
        if let Some(counters) = self.counters[at].take() {
            self.model.check_tally(at, counters.map(Counter::read));
            counters.into_iter().for_each(Counter::close);
        }
    }

    /// The application sleeps on a side, if `fi_trywait` lets it. Meanwhile the other side makes calls, and
    /// is about to sleep as well. If they have led to an entry, the descriptor is readable.
    fn sleep(&mut self, side: usize) {
        let Side { completions, descriptor, .. } = self.sides[side];
        let Some(descriptor) = descriptor.filter(|_| self.fabric.may_sleep(completions)) else { return };
        for _ in 0..self.random.up_to(8) {
            let at = 2 * self.random.up_to(self.setting.connections - 1) + (side ^ 1);
            match self.random.up_to(4) {
                0 => self.send(at),
                1 => self.write(at, false),
                2 => self.receive(at, false),
                3 => drop(self.fabric.may_sleep(self.sides[side ^ 1].completions)),
                _ => self.read_entries(side ^ 1, 2),
            }
        }
        let is_woken = is_readable(descriptor);
        let Some(entry) = (0..LOOKS).find_map(|_| completions.read()) else { return };
        assert!(is_woken, "nothing wakes the application");
        self.model.entry(side, &entry);
        self.model.seen.woken += 1;
    }

    /// Reads up to `most` entries of a side.
    fn read_entries(&mut self, side: usize, most: usize) {
        for _ in 0..most {
            let Some(entry) = self.sides[side].completions.read() else { break };
            self.model.entry(side, &entry);
        }
    }

    fn read_events(&mut self) {
        while let Some(event) = self.events.read() {
            self.take_event(&event);
        }
    }

    fn take_event(&mut self, event: &Event) {
        let party = |endpoint| self.endpoints.iter().position(|&one| one == Some(endpoint));
        let known = |endpoint| party(endpoint).expect("an event of an open endpoint");
        match *event {
            Event::Request(_) => panic!("a request that nobody made"),
            Event::Connected(endpoint) => self.model.parties[known(endpoint)].has_answer = true,
            Event::Shutdown(endpoint) | Event::Failed(endpoint) => {
                let at = known(endpoint);
                self.model.shut(at);
                if !self.model.parties[at].has_shut && self.setting.plans[0] == Plan::none() {
                    // What is complete is reported before the end of the connection.
                    self.read_entries(at % 2, usize::MAX);
                    self.model.check_ended(at);
                }
            }
        }
    }

    /// Lets everything end that has to end: each message finds a receive, each operation is reported.
    fn finish(&mut self) {
        for connection in 0..self.setting.connections {
            let ends = [2 * connection, 2 * connection + 1];
            if self.model.may_fail(ends[0]) && !self.model.has_ended(ends[0]) {
                let at = self.random.pick(&ends);
                self.shut_down(at);
            }
        }
        for _ in 0..PATIENCE {
            let mut is_finished = true;
            for at in 0..self.endpoints.len() {
                self.read_entries(at % 2, usize::MAX);
                self.read_events();
                if self.endpoints[at].is_some() && !self.model.is_finished(at) {
                    is_finished = false;
                    self.help(at);
                }
            }
            if is_finished {
                return;
            }
        }
        for at in 0..self.endpoints.len() {
            assert!(self.endpoints[at].is_none() || self.model.is_finished(at), "{}", self.model.state(at));
        }
    }

    /// Gives `at` what it may be waiting for: receives for messages, and a message for a receive that is not
    /// reported.
    fn help(&mut self, at: usize) {
        if self.model.lacks_receives(at) {
            self.receive(at, true);
        }
        if self.model.lacks_messages(at) {
            self.send(at ^ 1);
        }
    }

    /// Checks what is written and counted when everything has ended.
    fn check_finished(&mut self) {
        // Writes arrive that nothing tells of.
        for _ in 0..200 {
            (0..2).for_each(|side| self.read_entries(side, usize::MAX));
        }
        self.model.check_windows();
        for at in 0..self.endpoints.len() {
            if let (Some([sends, _, accesses]), false) = (self.counters[at], self.model.has_ended(at)) {
                let tally = &self.model.parties[at].tally;
                assert_eq!(sends.read(), (tally.sends + tally.injected, 0), "all that {at} sends is done");
                assert_eq!(accesses.read(), (self.model.accesses_to(at), 0), "all that is accessed at {at}");
            }
        }
    }

    fn end(mut self) {
        if self.random.happens(600) {
            self.finish();
            self.check_finished();
        }
        let order = self.random.up_to(self.endpoints.len() - 1);
        (0..self.endpoints.len()).for_each(|at| self.close(at ^ order));
        // What the devices still send and receive for closed endpoints touches nothing and is not reported.
        for round in 0..200 {
            self.read_events();
            for side in &self.sides {
                assert!(side.completions.read().is_none(), "round {round}");
            }
        }
        self.cancel_shared();
        self.model.check_untouched();
        for side in &self.sides {
            side.listener.close();
            side.region.close();
            if let Some(shared) = side.shared {
                shared.close();
            }
            side.completions.close();
        }
        self.events.close();
        let domains = if self.setting.is_one_domain { 1 } else { 2 };
        self.sides[..domains].iter().for_each(|side| side.domain.close());
        self.fabric.close();
    }
}

#[test]
fn each_operation_ends_once_as_it_must() {
    let (mut arena, mut seen) = (Arena::new(ARENA), Seen::default());
    let mut runs = 0;
    for_each_seed(SEEDS, |seed| {
        let mut run = Run::new(seed, &mut arena, &mut seen);
        (0..run.setting.connections).for_each(|connection| run.connect(connection));
        (0..run.setting.steps).for_each(|_| run.step());
        run.end();
        runs += 1;
    });
    println!("{runs} runs: {seen:?}");
    if runs >= SEEDS {
        seen.check(runs);
    }
}
