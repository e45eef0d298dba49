//! Many connections between two threads: opened one after the other, then a message there and one back on
//! each, again and again.

use std::time::Instant;

use anyhow::{Result, bail};

use super::Clock;
use super::end::Patience;
use crate::job::{Job, Metric, Outcome, Tally};
use crate::transport::{Connector, Interest, Listener, Stream};

/// The active side.
pub(super) fn ask<C: Connector>(job: &Job, connector: &mut C) -> Result<Outcome> {
    let start = Instant::now();
    let mut streams = Vec::with_capacity(job.connections);
    for _ in 0..job.connections {
        streams.push(connector.connect()?);
    }
    let opening = start.elapsed().as_secs_f64() * 1e6 / job.connections as f64;

    let mut clock = Clock::start(job);
    let mut messages = 0;
    let mut crowd = Crowd::new(job, streams);
    while !clock.is_over(Instant::now(), messages) {
        crowd.round()?;
        messages += job.connections as u64;
    }
    let rate = clock.rate(messages);
    crowd.finish()?;
    let tally = Tally { bytes: messages * job.size as u64, checksum: 0 };
    let metrics = vec![(Metric::Opening, opening), (Metric::MessageRate, rate)];
    Ok(Outcome { sent: tally, received: tally, metrics })
}

/// The connections of the active side.
struct Crowd<S> {
    streams: Vec<S>,
    /// Of each, how much of its message is still to send and to receive.
    owed: Vec<(usize, usize)>,
    message: Vec<u8>,
    buffer: Vec<u8>,
    patience: Patience,
}

impl<S: Stream> Crowd<S> {
    fn new(job: &Job, streams: Vec<S>) -> Self {
        let owed = vec![(0, 0); streams.len()];
        let (message, buffer) = (vec![0; job.size], vec![0; job.size]);
        Self { streams, owed, message, buffer, patience: Patience::new(job.sleeps) }
    }

    /// A message there and one back on each.
    fn round(&mut self) -> Result<()> {
        let size = self.message.len();
        self.owed.fill((size, size));
        let mut open = self.streams.len();
        while open > 0 {
            let (mut moved, mut unsent) = (false, false);
            for (stream, (send, receive)) in self.streams.iter_mut().zip(&mut self.owed) {
                if *receive == 0 {
                    continue;
                }
                if *send > 0
                    && let Some(taken) = stream.send(&self.message[size - *send..])?
                {
                    *send -= taken;
                    moved = true;
                }
                unsent |= *send > 0;
                match stream.receive(&mut self.buffer[..*receive])? {
                    Some(0) => bail!("the other side ended first"),
                    Some(given) => {
                        *receive -= given;
                        moved = true;
                        open -= usize::from(*receive == 0);
                    }
                    None => {}
                }
            }
            if moved {
                self.patience.restore();
            } else {
                let until = if unsent { Interest::Both } else { Interest::Receive };
                self.patience.wait(|| S::sleep(&self.streams, until))?;
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.streams.iter_mut().try_for_each(S::finish)?;
        for stream in &mut self.streams {
            while stream.receive(&mut self.buffer)? != Some(0) {
                self.patience.wait(|| S::sleep(std::slice::from_ref(stream), Interest::Receive))?;
            }
        }
        Ok(())
    }
}

/// The passive side: sends back whatever comes, until every stream has ended.
pub(super) fn answer<L: Listener>(job: &Job, listener: &mut L) -> Result<Outcome> {
    let mut streams = Vec::with_capacity(job.connections);
    for _ in 0..job.connections {
        streams.push(listener.accept()?);
    }
    let mut kept = vec![Vec::new(); job.connections];
    let mut buffer = vec![0; job.size];
    let mut tally = Tally::default();
    let mut patience = Patience::new(job.sleeps);
    while !streams.is_empty() {
        let (mut moved, mut at) = (false, 0);
        while at < streams.len() {
            match echo(&mut streams[at], &mut kept[at], &mut buffer)? {
                Echo::Quiet => at += 1,
                Echo::Moved(bytes) => {
                    tally.bytes += bytes as u64;
                    moved = true;
                    at += 1;
                }
                Echo::Ended => {
                    streams.swap_remove(at).finish()?;
                    kept.swap_remove(at);
                    moved = true;
                }
            }
        }
        if moved {
            patience.restore();
        } else {
            let unsent = kept.iter().any(|kept| !kept.is_empty());
            let until = if unsent { Interest::Both } else { Interest::Receive };
            patience.wait(|| L::Stream::sleep(&streams, until))?;
        }
    }
    Ok(Outcome { sent: tally, received: tally, metrics: Vec::new() })
}

/// What became of looking at a stream.
enum Echo {
    Quiet,
    /// So many bytes went back.
    Moved(usize),
    Ended,
}

/// Sends back what came, or what could not be sent back before.
fn echo<S: Stream>(stream: &mut S, kept: &mut Vec<u8>, buffer: &mut [u8]) -> Result<Echo> {
    if kept.is_empty() {
        match stream.receive(buffer)? {
            None => return Ok(Echo::Quiet),
            Some(0) => return Ok(Echo::Ended),
            Some(given) => kept.extend_from_slice(&buffer[..given]),
        }
    }
    let Some(taken) = stream.send(kept)? else { return Ok(Echo::Quiet) };
    kept.drain(..taken);
    Ok(Echo::Moved(taken))
}
