//! One side of one measurement, in a process of its own: every measurement begins with a fresh library, a
//! fresh heap and no history.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::candidate::Way;
use crate::job::{Job, Outcome, Word};
use crate::measure;
use crate::transport::fabric::message::{MessageDoor, MessageWay};
use crate::transport::fabric::{FabricDoor, FabricWay};
use crate::transport::line::{LineDoor, LineWay};
use crate::transport::ring::{RingDoor, RingWay};
use crate::transport::segment::{RingsDoor, RingsWay};
use crate::transport::socket::{TcpDoor, TcpWay, UnixDoor, UnixWay};
use crate::transport::{Connector, Listener};

/// What is given to a worker on its command line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Work {
    /// Where the passive side listens.
    pub(crate) address: IpAddr,
    pub(crate) job: Job,
    pub(crate) role: Role,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Role {
    Passive,
    /// With what the passive side said it is found by.
    Active(String),
}

/// How long a measurement may take besides its own time: opening, verifying, closing, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Each ring in shared memory unless its size is given.
const RING_BYTES: usize = 512 << 10;

/// Does the work and says what came of it.
pub(crate) fn work(work: &Work) -> Result<()> {
    work.job.check()?;
    end_in_time(&work.job);
    let outcome = prepare(work).and_then(|()| match &work.role {
        Role::Passive => passive(&work.job, work.address),
        Role::Active(target) => active(&work.job, work.address, target),
    });
    say(&match outcome {
        Ok(outcome) => Word::Done(outcome),
        Err(error) => Word::Failed(format!("{error:#}")),
    })
}

/// A side whose other side has vanished would wait for ever.
fn end_in_time(job: &Job) {
    let limit = job.duration() * 2 + PATIENCE;
    thread::spawn(move || {
        thread::sleep(limit);
        // Nobody may listen any more.
        let _ = say(&Word::Failed(format!("no end after {} s", limit.as_secs())));
        std::process::exit(1);
    });
}

fn prepare(work: &Work) -> Result<()> {
    if let Some([passive, active]) = work.job.processors {
        let mut set = CpuSet::new();
        set.set(if work.role == Role::Passive { passive } else { active });
        sched_setaffinity(None, &set).context("choosing the processor")?;
    }
    // Many connections need many descriptors.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .context("raising the limit of descriptors")
}

fn passive(job: &Job, address: IpAddr) -> Result<Outcome> {
    let rings = job.candidate.rings;
    match job.candidate.way {
        Way::Rstream | Way::RstreamIwarp => serve(job, FabricDoor::open(address, rings, job.sleeps)?),
        Way::RstreamMsg | Way::TcpMsg => {
            let mut door = MessageDoor::open(address, provider(job)?)?;
            say(&Word::Target(door.target()?))?;
            measure::message::passive(job, &mut door)
        }
        Way::Tcp => serve(job, TcpDoor::open(address)?),
        Way::Unix => serve(job, UnixDoor::open()?),
        Way::RstreamRing => serve(job, RingsDoor::open(ring_bytes(job), job.sleeps)?),
        Way::Ring => serve(job, RingDoor::open(ring_bytes(job))?),
        Way::Line => serve(job, LineDoor::open()?),
    }
}

fn provider(job: &Job) -> Result<&'static str> {
    job.candidate.provider().with_context(|| format!("{} is not carried by libfabric", job.candidate))
}

fn ring_bytes(job: &Job) -> usize {
    job.candidate.rings.bytes.unwrap_or(RING_BYTES)
}

fn serve<L: Listener>(job: &Job, mut listener: L) -> Result<Outcome> {
    say(&Word::Target(listener.target()?))?;
    measure::passive(job, &mut listener)
}

fn active(job: &Job, address: IpAddr, target: &str) -> Result<Outcome> {
    let there =
        || -> Result<_> { Ok(SocketAddr::new(address, target.parse().context("the other side's port")?)) };
    match job.candidate.way {
        Way::Rstream | Way::RstreamIwarp => {
            ask(job, FabricWay::new(there()?, job.candidate.rings, job.sleeps)?)
        }
        Way::RstreamMsg | Way::TcpMsg => {
            measure::message::active(job, &MessageWay::new(there()?, provider(job)?)?)
        }
        Way::Tcp => ask(job, TcpWay(there()?)),
        Way::Unix => ask(job, UnixWay(target.to_owned())),
        Way::RstreamRing => ask(job, RingsWay::new(target, ring_bytes(job), job.sleeps)),
        Way::Ring => ask(job, RingWay(target.to_owned())),
        Way::Line => ask(job, LineWay(target.to_owned())),
    }
}

fn ask<C: Connector>(job: &Job, mut connector: C) -> Result<Outcome> {
    measure::active(job, &mut connector)
}

fn say(word: &Word) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{}", serde_json::to_string(word)?)?;
    output.flush().context("saying what came of it")
}
