//! Regions as the memory of receives, of several pieces and of an owner outside, and the end of a connection
//! that is still used.

use rdma_testkit::faulty::Plan;
use rdma_testkit::sim::Config;
use rdma_verbs::typed::{End, Error, Pieces, Shard, TrustedDevice, Work};
use rdma_verbs::{Access, CompletionStatus, iwarp};

use super::support::{QUEUES, SIZE, any_port, connected, done, poll, settle, simulated, until};

/// Runs a test over a device in memory and over the embedded device.
macro_rules! over_devices {
    ($($name:ident),*) => { $(
        #[test]
        fn $name() {
            bodies::$name(simulated(&Config::infiniband(), &Plan::none()));
            bodies::$name([(); 2].map(|()| Shard::new(iwarp::Device::default()).unwrap()));
        }
    )* };
}

over_devices!(
    messages_land_where_the_program_says,
    landings_of_no_message_come_back,
    a_dropped_landing_takes_its_message,
    several_pieces_are_one_message,
    lent_memory_comes_back,
    a_connection_can_end_while_it_is_used
);

mod bodies {
    use super::*;

    pub(super) fn messages_land_where_the_program_says<D: TrustedDevice>(shards: [Shard<D>; 2]) {
        let [first, second] = connected(shards, any_port(), 1).unwrap();
        let both = [&first.shard, &second.shard];
        let region = second.shard.region(16, Access::LOCAL_WRITE).unwrap();
        let land = |range| second.connection.land(region.piece(range).unwrap()).unwrap();
        // The receive of the inbox was posted first.
        let (low, high, none) = (land(0..8), land(8..16), land(3..3));
        assert_eq!(second.connection.receives(), 4);
        for text in ["inbox", "low", "high", ""] {
            first.connection.send_inline(text.as_bytes()).unwrap();
        }
        assert_eq!(done(both, "the last one", none).unwrap().length, 0);
        assert_eq!(done(both, "the third", high).unwrap().length, 4);
        assert_eq!(done(both, "the second", low).unwrap().length, 3);
        let message = done(both, "the first", second.connection.recv()).unwrap();
        assert_eq!(message[..], *b"inbox");
        let mut bytes = [0; 16];
        region.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"low\0\0\0\0\0high\0\0\0\0");
        assert_eq!(second.connection.outstanding(), 0);
    }

    pub(super) fn landings_of_no_message_come_back<D: TrustedDevice>(shards: [Shard<D>; 2]) {
        let [first, second] = connected(shards, any_port(), 0).unwrap();
        let both = [&first.shard, &second.shard];
        let [mine, theirs, unwritten] = [
            second.shard.region(8, Access::LOCAL_WRITE),
            first.shard.region(8, Access::LOCAL_WRITE),
            second.shard.region(8, Access::REMOTE_READ),
        ]
        .map(|region| region.unwrap().piece(0..8).unwrap());
        let failed = second.connection.land(theirs).err().unwrap();
        assert!(matches!(failed.error, Error::ForeignMemory { .. }), "{failed}");
        let failed = second.connection.land(unwritten).err().unwrap();
        assert!(matches!(failed.error, Error::MissingRights { .. }), "{failed}");
        let region = second.shard.region(8, Access::LOCAL_WRITE).unwrap();
        let mut landings: Vec<_> = (0..QUEUES.recv_depth)
            .map(|_| second.connection.land(region.piece(0..8).unwrap()).unwrap())
            .collect();
        let failed = second.connection.land(mine).err().unwrap();
        assert!(matches!(failed.error, Error::Verbs(rdma_verbs::Error::QueueFull { .. })), "{failed}");
        let last = landings.pop().unwrap();
        first.connection.abort();
        for landing in landings {
            let failed = done(both, "the end of a landing", landing).err().unwrap();
            let Error::Operation { status: CompletionStatus::Flushed, end: Some(_) } = failed.error else {
                panic!("{failed}");
            };
        }
        // With its queue pair gone, it still has its outcome.
        drop(second.connection);
        settle(both);
        assert!(done(both, "the end of a landing", last).is_err());
        second.shard.deregister(region).unwrap();
    }

    pub(super) fn a_dropped_landing_takes_its_message<D: TrustedDevice>(shards: [Shard<D>; 2]) {
        let [first, second] = connected(shards, any_port(), 0).unwrap();
        let both = [&first.shard, &second.shard];
        let region = second.shard.region(8, Access::LOCAL_WRITE).unwrap();
        drop(second.connection.land(region.piece(0..4).unwrap()).unwrap());
        let kept = second.connection.land(region.piece(4..8).unwrap()).unwrap();
        let region = second.shard.deregister(region).unwrap_err();
        first.connection.send_inline(b"lost").unwrap();
        first.connection.send_inline(b"kept").unwrap();
        drop(done(both, "the second", kept).unwrap());
        let mut bytes = [0; 8];
        region.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"lostkept");
        second.shard.deregister(region).unwrap();
    }

    pub(super) fn several_pieces_are_one_message<D: TrustedDevice>(shards: [Shard<D>; 2]) {
        let [first, second] = connected(shards, any_port(), 2).unwrap();
        let both = [&first.shard, &second.shard];
        let [source, other] =
            [first.shard.region(16, Access::empty()), first.shard.region(4, Access::empty())]
                .map(Result::unwrap);
        source.write(0, b"abcdefghijklmnop").unwrap();
        other.write(0, b"0123").unwrap();
        let pieces = || {
            let list = [source.piece(12..16), other.piece(1..3), source.piece(5..5), source.piece(0..2)];
            Pieces::new(list.map(Result::unwrap)).unwrap()
        };
        drop(done(both, "a send", first.connection.send(pieces())).unwrap());
        assert_eq!(done(both, "a message", second.connection.recv()).unwrap()[..], *b"mnop12ab");

        let target = second.shard.region(8, Access::REMOTE_WRITE).unwrap();
        drop(done(both, "a write", first.connection.write(pieces(), target.remote())).unwrap());
        let nothing = Pieces::new([source.piece(0..0).unwrap(), source.piece(3..3).unwrap()]).unwrap();
        drop(done(both, "an empty send", first.connection.send(nothing)).unwrap());
        assert!(done(both, "a message", second.connection.recv()).unwrap().is_empty());
        let mut bytes = [0; 8];
        target.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"mnop12ab");

        let short = target.remote().piece(1, 7).unwrap();
        let refused = done(both, "a refusal", first.connection.write(pieces(), short)).unwrap_err();
        assert!(matches!(refused.error, Error::OutOfBounds(_)), "{refused}");
        let foreign = Pieces::new([source.piece(0..2).unwrap(), target.piece(0..2).unwrap()]).unwrap();
        let failed = done(both, "a refusal", first.connection.send(foreign)).unwrap_err();
        assert!(matches!(failed.error, Error::ForeignMemory { .. }), "{failed}");
        assert!(Pieces::new([]).is_none());
        drop((refused, failed));
        settle(both);
        for region in [source, other] {
            first.shard.deregister(region).unwrap();
        }
    }

    pub(super) fn lent_memory_comes_back<D: TrustedDevice>(shards: [Shard<D>; 2]) {
        let [first, second] = connected(shards, any_port(), 2).unwrap();
        let both = [&first.shard, &second.shard];
        let mut bytes = vec![7_u8; 2 * SIZE];
        let (base, length) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: nothing else uses the vector before the region is deregistered below, and it is neither
        // moved nor freed.
        let region = unsafe { second.shard.lend(base, length, Access::all()) }.unwrap();
        assert_eq!((region.base().as_ptr(), region.len()), (base, length));
        let remote = region.remote();
        let written = first.pool.copy_of(&[9; SIZE]).unwrap();
        drop(done(both, "a write", first.connection.write(written, remote)).unwrap());
        let read = first.connection.read(first.pool.take().unwrap(), remote.piece(1, SIZE as u32).unwrap());
        assert_eq!(done(both, "a read", read).unwrap()[SIZE - 2..], [9, 7]);

        let region = first.shard.deregister(region).unwrap_err();
        let clone = region.clone();
        let region = second.shard.deregister(region).unwrap_err();
        drop(clone);
        second.shard.deregister(region).unwrap();
        let (old, new) = bytes.split_at(SIZE);
        assert_eq!((old, new), (&[9; SIZE][..], &[7; SIZE][..]));
        // The key is worth nothing now.
        let _ = done(both, "a write", first.connection.write(first.pool.take().unwrap(), remote));
        until(both, "the end", || second.connection.end());
        assert_eq!(bytes[..SIZE], [9; SIZE]);

        for (base, size) in [(std::ptr::null_mut(), 8), (base, 0), (base, usize::MAX)] {
            // SAFETY: none of these is registered.
            let refused = unsafe { first.shard.lend(base, size, Access::all()) };
            assert!(matches!(refused, Err(Error::Verbs(rdma_verbs::Error::OutOfRange { .. }))), "{size}");
        }
    }

    pub(super) fn a_connection_can_end_while_it_is_used<D: TrustedDevice>(shards: [Shard<D>; 2]) {
        let [first, second] = connected(shards, any_port(), 2).unwrap();
        let both = [&first.shard, &second.shard];
        let mut ended = second.connection.ended();
        assert!(poll(&mut ended).is_none());
        drop(second.connection.ended());
        let sending = first.connection.send(first.pool.copy_of(b"last").unwrap());
        let mut posted = Box::pin(sending);
        let early = poll(&mut posted);
        first.connection.disconnect();
        let refused = poll(&mut first.connection.post(Work::send(first.pool.take().unwrap())));
        assert!(refused.unwrap().is_err(), "nothing more can be posted");
        drop(early.unwrap_or_else(|| done(both, "the send", posted)).unwrap());
        assert_eq!(done(both, "the message", second.connection.recv()).unwrap()[..], *b"last");
        assert_eq!(done(both, "the end", ended), End::Disconnected);
        second.connection.disconnect();
        assert_eq!(done(both, "the end", first.connection.ended()), End::Disconnected);
    }
}
