//! Receives that queue pairs share, which are not for messages. A device without them refuses to create a
//! queue.

use rdma_verbs::{
    Access, Buffer, Completion, CompletionKind, Connections, Device, Error, MemoryRegion, MessageQueues,
    Operation, QpCapabilities, QueuePairs, RecvRequest, Segment, SrqId, Transport,
};

use super::rig::Rig;
use crate::harness::{Joined, Pair, SEND, bytes, pattern, remote, segment, success};

/// Bytes of a receive.
const SIZE: usize = 10;
const RECEIVES: u64 = 6;

/// A shared queue of the passive side, and the memory of its receives.
struct Scene<D: Device> {
    pair: Pair<D>,
    srq: SrqId,
    source: D::Mr,
    target: D::Mr,
}

impl<D: Device> Scene<D> {
    /// `None` if the device has no shared queues.
    fn new(rig: &impl Rig<Device = D>) -> Option<Self> {
        let mut pair = Pair::new(rig);
        let passive = &mut pair.passive;
        let created = passive.cq.create_srq(&passive.pd, 8);
        if passive.device.attributes().max_srq_depth == 0 {
            assert!(matches!(created, Err(Error::Unsupported(_))), "{created:?}");
            return None;
        }
        let source = pair.active.region(SIZE * RECEIVES as usize, Access::empty());
        source.memory().write(0, &pattern(SIZE * RECEIVES as usize, 2)).unwrap();
        let target = pair.passive.region(SIZE * RECEIVES as usize, Access::LOCAL_WRITE);
        Some(Self { srq: created.unwrap(), pair, source, target })
    }

    fn join(&mut self) -> Joined {
        let (srq, wanted) = (self.srq, QpCapabilities { recv_depth: 0, ..self.pair.capabilities });
        self.pair.join_shared(wanted, srq)
    }

    fn place(&self, id: u64) -> Segment {
        segment(&self.target, SIZE * id as usize, SIZE)
    }

    fn post(&mut self, id: u64) {
        let buffer = Buffer::Segment(self.place(id));
        self.pair.passive.cq.post_srq_recv(self.srq, &[RecvRequest { id, buffer }]).unwrap();
    }

    /// Sends so many bytes, those that belong in the receive with this id.
    fn send(&mut self, joined: Joined, id: u64, length: usize) {
        let bytes = segment(&self.source, SIZE * id as usize, length);
        self.pair.active.post(joined.active, id, SEND, &[bytes]);
    }

    /// The next completion of the passive side is that of a message.
    fn arrives(&mut self, joined: Joined, id: u64, length: usize) {
        let expected = success(joined.passive, id, CompletionKind::Recv);
        assert_eq!(self.pair.at_passive(), Completion { length: length as u32, ..expected });
    }
}

pub fn queue_pairs_share_receives(rig: &impl Rig) {
    let Some(mut scene) = Scene::new(rig) else { return };
    let connections = [0; 3].map(|_| scene.join());
    (0..RECEIVES).for_each(|id| scene.post(id));
    for id in 0..RECEIVES {
        let joined = connections[[1, 0, 2, 2, 0, 1][id as usize]];
        scene.send(joined, id, SIZE);
        scene.arrives(joined, id, SIZE);
        scene.pair.at_active();
    }
    assert_eq!(bytes(&scene.target), pattern(SIZE * RECEIVES as usize, 2));

    let Scene { pair, srq, .. } = &mut scene;
    let requests = [RecvRequest { id: 0, buffer: Buffer::Empty }; 9];
    let refused = pair.passive.cq.post_srq_recv(*srq, &requests);
    assert!(matches!(refused, Err(Error::QueueFull { .. })), "{refused:?}");
    let refused = pair.passive.cq.post_recv(connections[0].passive, &requests[..1]);
    assert!(refused.is_err(), "it has no receives of its own");
    let other = pair.passive.device.alloc_pd().unwrap();
    let refused = pair.passive.cq.create_shared_qp(&other, pair.capabilities, *srq);
    assert!(matches!(refused, Err(Error::BadState { .. })), "{refused:?}");
    let refused = pair.passive.cq.destroy_srq(*srq);
    assert!(matches!(refused, Err(Error::BadState { .. })), "{refused:?}");
    connections.iter().for_each(|joined| pair.passive.destroy(joined.passive));
    pair.passive.cq.destroy_srq(*srq).unwrap();
    let refused = pair.passive.cq.create_shared_qp(&pair.passive.pd, pair.capabilities, *srq);
    assert!(matches!(refused, Err(Error::BadState { .. })), "{refused:?}");
}

pub fn numbers_of_writes_consume_shared_receives(rig: &impl Rig) {
    let Some(mut scene) = Scene::new(rig) else { return };
    if scene.pair.active.device.attributes().immediate == 0 {
        return;
    }
    let joined = scene.join();
    let window = scene.pair.passive.region(SIZE, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    scene.post(1);
    let write = Operation::Write { remote: remote(&window, 0), immediate: Some(77) };
    scene.pair.active.post(joined.active, 3, write, &[segment(&scene.source, 0, 4)]);
    let expected = success(joined.passive, 1, CompletionKind::RecvWrite);
    assert_eq!(scene.pair.at_passive(), Completion { length: 4, immediate: Some(77), ..expected });
    assert_eq!(bytes(&window)[..4], pattern(4, 2));
}

pub fn a_message_without_a_shared_receive_concerns_its_connection_only(rig: &impl Rig) {
    let Some(mut scene) = Scene::new(rig) else { return };
    let [first, second] = [0; 2].map(|_| scene.join());
    scene.send(first, 0, 5);
    if scene.pair.passive.device.attributes().transport == Transport::Iwarp {
        assert!(rig.is_break(&scene.pair.event(first, true)));
    } else {
        scene.pair.drive_until_idle();
        assert!(scene.pair.passive.completions.is_empty());
        scene.post(0);
        scene.arrives(first, 0, 5);
    }
    scene.pair.active.completions.clear();
    scene.post(1);
    scene.send(second, 1, 3);
    scene.arrives(second, 1, 3);
}

pub fn shared_receives_are_not_flushed(rig: &impl Rig) {
    let Some(mut scene) = Scene::new(rig) else { return };
    let [first, second, last] = [0; 3].map(|_| scene.join());
    scene.post(1);
    scene.post(2);
    scene.pair.active.cq.abort(first.active);
    assert!(rig.is_break(&scene.pair.event(first, true)));
    scene.pair.passive.destroy(second.passive);
    scene.pair.drive_until_idle();
    assert!(scene.pair.passive.completions.is_empty());
    scene.pair.active.completions.clear();
    for id in 1..=2 {
        scene.send(last, id, 4);
        scene.arrives(last, id, 4);
    }
}

pub fn shared_receives_are_used_after_disconnecting(rig: &impl Rig) {
    let Some(mut scene) = Scene::new(rig) else { return };
    if !rig.closes_directions_separately() {
        return;
    }
    let joined = scene.join();
    scene.post(1);
    scene.pair.passive.cq.disconnect(joined.passive);
    scene.send(joined, 1, 4);
    scene.arrives(joined, 1, 4);
}
