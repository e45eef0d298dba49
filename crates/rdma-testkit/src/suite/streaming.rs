//! Two sides in two threads.

use std::time::Instant;

use rdma_verbs::{
    Access, Buffer, CompletionKind, CompletionStatus, Device, MemoryRegion, Payload, QpId, QueuePairs,
    RecvRequest, SendRequest,
};

use super::rig::Rig;
use crate::harness::{CAPABILITIES, End, Joined, LIMIT, Pair, SEND, segment, step};

const MESSAGES: u64 = 100_000;
/// Receives of each side.
const WINDOW: u64 = CAPABILITIES.recv_depth as u64;
/// Messages after which the receiver returns a credit.
const CREDIT: u64 = WINDOW / 4;
/// Every so many sends one is signaled, so that the send queue does not fill up.
const SIGNAL_EVERY: u64 = CAPABILITIES.send_depth as u64 / 4;
const MESSAGE: usize = 8;

/// The active side sends numbered messages, of which at most as many are outstanding as the passive side has
/// receives. The passive side checks each message and returns credits. Each side's deadline starts again with
/// each completion, so that a slow machine passes.
pub fn two_threads_stream(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let ring = pair.passive.region(MESSAGE * WINDOW as usize, Access::LOCAL_WRITE);
    let slot = |id: u64| segment(&ring, MESSAGE * (id % WINDOW) as usize, MESSAGE);
    let joined = pair.join(|pair, joined| {
        pair.active.post_empty_receives(joined.active, WINDOW);
        (0..WINDOW).for_each(|id| pair.passive.receive_into(joined.passive, id, slot(id)));
    });
    let Joined { active, passive } = joined;
    let Pair { active: mut sender, passive: mut receiver, .. } = pair;
    // Both ends exist until both are done, because dropping an end breaks the connection.
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| send_all(&mut sender, active));
        receive_all(&mut receiver, passive, &ring, slot);
        sending.join().unwrap();
    });
}

fn send_all<D: Device>(end: &mut End<D>, qp: QpId) {
    let source = end.region(MESSAGE * WINDOW as usize, Access::empty());
    let mut deadline = Instant::now() + LIMIT;
    let (mut sent, mut granted, mut free) = (0, WINDOW, u64::from(CAPABILITIES.send_depth));
    while granted < MESSAGES + WINDOW {
        while sent < granted.min(MESSAGES) && free > 0 {
            // The slot's previous message was sent a window ago, and credits show that it has arrived.
            let place = MESSAGE * (sent % WINDOW) as usize;
            source.memory().write(place as u64, &sent.to_le_bytes()).unwrap();
            let pieces = [segment(&source, place, MESSAGE)];
            let signaled = (sent + 1) % SIGNAL_EVERY == 0;
            let payload = Payload::Segments(&pieces);
            let request = SendRequest { id: sent, signaled, operation: SEND, payload };
            end.cq.post_send(qp, &[request], false).unwrap();
            (sent, free) = (sent + 1, free - 1);
        }
        step(&mut [end], deadline, "credits").unwrap();
        while let Some(completion) = end.completions.pop_front() {
            assert_eq!(completion.status, CompletionStatus::Success);
            deadline = Instant::now() + LIMIT;
            match completion.kind {
                CompletionKind::Send => free += SIGNAL_EVERY,
                _ => {
                    granted += CREDIT;
                    end.cq.post_recv(qp, &[RecvRequest { id: 0, buffer: Buffer::Empty }]).unwrap();
                }
            }
        }
    }
}

fn receive_all<D: Device>(
    end: &mut End<D>,
    qp: QpId,
    ring: &D::Mr,
    slot: impl Fn(u64) -> rdma_verbs::Segment,
) {
    let mut deadline = Instant::now() + LIMIT;
    let mut taken = 0;
    let mut owed = 0;
    let mut in_flight = 0;
    while taken < MESSAGES || owed >= CREDIT || in_flight > 0 {
        while let Some(completion) = end.completions.pop_front() {
            assert_eq!(completion.status, CompletionStatus::Success);
            deadline = Instant::now() + LIMIT;
            if completion.kind == CompletionKind::Send {
                in_flight -= 1;
                continue;
            }
            assert_eq!(completion.id, taken % WINDOW);
            let mut bytes = [0; MESSAGE];
            ring.memory().read((MESSAGE as u64) * (taken % WINDOW), &mut bytes).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), taken);
            end.receive_into(qp, taken % WINDOW, slot(taken));
            (taken, owed) = (taken + 1, owed + 1);
        }
        while owed >= CREDIT && in_flight < CAPABILITIES.send_depth {
            end.post(qp, taken, SEND, &[]);
            (owed, in_flight) = (owed - CREDIT, in_flight + 1);
        }
        if taken < MESSAGES || in_flight > 0 {
            step(&mut [end], deadline, "messages").unwrap();
        }
    }
}
