//! What operations do when nothing goes wrong.

use rdma_testkit::faulty::Plan;
use rdma_testkit::sim::Config;
use rdma_verbs::typed::{Shard, TrustedDevice, Work};
use rdma_verbs::{Access, iwarp};

use super::support::{BUFFERS, QUEUES, SIZE, any_port, connected, done, poll, settle, simulated, until};

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
    messages_arrive_in_order,
    a_message_may_be_empty,
    a_batch_is_done_when_all_of_it_is,
    a_write_can_tell_the_peer,
    a_fenced_send_has_what_a_read_fetches,
    a_key_can_be_invalidated,
    a_buffer_can_be_kept,
    a_message_outlives_its_connection,
    a_message_that_is_dropped_while_this_side_closes_is_not_posted,
    inline_sends_do_not_fill_the_queue,
    both_sides_can_be_on_one_shard
);

mod bodies {
    use super::*;

    pub(super) fn messages_arrive_in_order<D: TrustedDevice>(shards: [Shard<D>; 2]) {
        let [first, second] = connected(shards, any_port(), 4).unwrap();
        let both = [&first.shard, &second.shard];
        for round in 0..20_u8 {
            let sends = [0, 1, 2].map(|at| {
                let mut send = first.connection.send(first.pool.copy_of(&[3 * round + at; 5]).unwrap());
                (poll(&mut send), send)
            });
            for at in 0..3 {
                let received = done(both, "a message", second.connection.recv()).unwrap();
                assert_eq!(received[..], [3 * round + at; 5]);
                assert_eq!(
                    (received.immediate(), received.written(), received.invalidated()),
                    (None, None, None)
                );
            }
            for (outcome, send) in sends {
                let outcome = outcome.unwrap_or_else(|| done(both, "a completion", send));
                assert_eq!(outcome.unwrap().len(), 5);
            }
        }
        assert_eq!(second.connection.receives(), 4);
        let address = first.connection.local_address();
        assert_eq!(second.connection.peer_address(), address);
    }

    pub(super) fn a_message_may_be_empty<D: TrustedDevice>(shards: [Shard<D>; 2]) {
        let [first, second] = connected(shards, any_port(), 4).unwrap();
        let both = [&first.shard, &second.shard];
        let empty = first.pool.copy_of(b"").unwrap();
        let mut buf = done(both, "a completion", first.connection.send(empty)).unwrap();
        assert!(buf.is_empty());
        buf.resize(SIZE).unwrap();
        assert!(done(both, "a message", second.connection.recv()).unwrap().is_empty());
        drop(done(both, "a completion", first.connection.send(buf)).unwrap());
        assert_eq!(done(both, "a message", second.connection.recv()).unwrap().len(), SIZE);
    }

    pub(super) fn a_batch_is_done_when_all_of_it_is<D: TrustedDevice>(shards: [Shard<D>; 2]) {
        let [first, second] = connected(shards, any_port(), 4).unwrap();
        let both = [&first.shard, &second.shard];
        let region = second.shard.region(2 * SIZE, Access::all()).unwrap();
        let remote = region.remote();
        let buf = |value| first.pool.copy_of(&[value; SIZE]).unwrap();
        let place = |at| remote.piece(at * SIZE as u32, SIZE as u32).unwrap();
        let works = [
            Work::write(buf(1), place(0)),
            Work::write(buf(2), place(1)),
            Work::read(buf(0), place(0)),
            Work::send(buf(3)),
        ];
        let bufs = done(both, "a batch", first.connection.batch(works)).unwrap();
        assert_eq!(bufs.map(|buf| buf[0]), [1, 2, 1, 3]);
        assert_eq!(done(both, "a message", second.connection.recv()).unwrap()[..], [3; SIZE]);
    }

    pub(super) fn a_write_can_tell_the_peer<D: TrustedDevice>(shards: [Shard<D>; 2]) {
        let [first, second] = connected(shards, any_port(), 4).unwrap();
        let both = [&first.shard, &second.shard];
        let region = second.shard.region(SIZE, Access::REMOTE_WRITE).unwrap();
        let write = Work::write_immediate(first.pool.copy_of(b"told").unwrap(), region.remote(), 77);
        drop(done(both, "a completion", first.connection.post(write)).unwrap());
        let told = done(both, "a number", second.connection.recv()).unwrap();
        assert_eq!((told.immediate(), told.written(), told.len()), (Some(77), Some(4), 0));
        let mut bytes = [0; 4];
        region.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"told");
    }

    pub(super) fn a_fenced_send_has_what_a_read_fetches<D: TrustedDevice>(shards: [Shard<D>; 2]) {
        let [first, second] = connected(shards, any_port(), 4).unwrap();
        let both = [&first.shard, &second.shard];
        let source = second.shard.region(SIZE, Access::REMOTE_READ).unwrap();
        source.write(0, &[6; SIZE]).unwrap();
        let middle = first.shard.region(SIZE, Access::LOCAL_WRITE).unwrap();
        let piece = || middle.piece(0..SIZE).unwrap();
        let works = [Work::read(piece(), source.remote()), Work::send(piece()).fenced()];
        let mut batch = first.connection.batch(works);
        let outcome = poll(&mut batch);
        assert_eq!(done(both, "a message", second.connection.recv()).unwrap()[..], [6; SIZE]);
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => done(both, "a batch", batch),
        };
        drop(outcome.unwrap());
        let read = first.connection.post(Work::read(piece(), source.remote()).fenced());
        assert!(done(both, "a refusal", read).is_err());
    }

    pub(super) fn a_key_can_be_invalidated<D: TrustedDevice>(shards: [Shard<D>; 2]) {
        let [first, second] = connected(shards, any_port(), 4).unwrap();
        let both = [&first.shard, &second.shard];
        let region = second.shard.region(SIZE, Access::REMOTE_WRITE).unwrap();
        let remote = region.remote();
        let write = || done(both, "a write", first.connection.write(first.pool.take().unwrap(), remote));
        drop(write().unwrap());
        let work = Work::send_invalidate(first.pool.copy_of(b"").unwrap(), remote.key);
        drop(done(both, "a completion", first.connection.post(work)).unwrap());
        let received = done(both, "a message", second.connection.recv()).unwrap();
        assert_eq!(received.invalidated(), Some(remote.key));
        // The embedded device reports a write done when TCP has taken it.
        let _ = write();
        settle(both);
        assert!(second.connection.end().is_some(), "the key is worth nothing");
    }

    pub(super) fn a_buffer_can_be_kept<D: TrustedDevice>(shards: [Shard<D>; 2]) {
        let [first, second] = connected(shards, any_port(), 2).unwrap();
        let both = [&first.shard, &second.shard];
        drop(
            done(both, "a completion", first.connection.send(first.pool.copy_of(b"keep").unwrap())).unwrap(),
        );
        let received = done(both, "a message", second.connection.recv()).unwrap();
        let kept = received.into_buf();
        assert_eq!((&kept[..], kept.capacity()), (&b"keep"[..], SIZE));
        assert_eq!(second.connection.receives(), 1, "it is not posted again");
        second.connection.post_receives(&second.pool, 1).unwrap();
        assert_eq!((second.connection.receives(), second.pool.available()), (2, BUFFERS as usize - 3));
        drop(kept);
        assert_eq!(second.pool.available(), BUFFERS as usize - 2);
    }

    pub(super) fn a_message_outlives_its_connection<D: TrustedDevice>(shards: [Shard<D>; 2]) {
        let [first, second] = connected(shards, any_port(), 3).unwrap();
        let both = [&first.shard, &second.shard];
        let region = second.shard.region(SIZE, Access::REMOTE_WRITE).unwrap();
        let write = Work::write_immediate(first.pool.copy_of(b"!").unwrap(), region.remote(), 7);
        drop(done(both, "a completion", first.connection.post(write)).unwrap());
        let told = done(both, "a message", second.connection.recv()).unwrap();
        drop(
            done(both, "a completion", first.connection.send(first.pool.copy_of(b"held").unwrap())).unwrap(),
        );
        let held = done(both, "a message", second.connection.recv()).unwrap();
        drop((first.connection, second.connection));
        let is_over = || (second.pool.available() == BUFFERS as usize - 2).then_some(());
        until(both, "the end", is_over);
        // Its queue pair may have the place of the one that is destroyed.
        let again = connected([first.shard.clone(), second.shard.clone()], any_port(), 2).unwrap();
        assert_eq!((told.immediate(), told.written(), &held[..]), (Some(7), Some(1), &b"held"[..]));
        drop((told, held));
        assert_eq!(again[1].connection.receives(), 2, "nothing is posted to another connection");
        assert_eq!(second.pool.available(), BUFFERS as usize);
    }

    pub(super) fn a_message_that_is_dropped_while_this_side_closes_is_not_posted<D: TrustedDevice>(
        shards: [Shard<D>; 2],
    ) {
        let [first, second] = connected(shards, any_port(), 2).unwrap();
        let both = [&first.shard, &second.shard];
        let sent = first.connection.send(first.pool.copy_of(b"held").unwrap());
        drop(done(both, "a completion", sent).unwrap());
        let held = done(both, "a message", second.connection.recv()).unwrap();
        let _closing = second.connection.close();
        let before = second.pool.available();
        drop(held);
        assert_eq!(second.pool.available(), before + 1);
    }

    pub(super) fn inline_sends_do_not_fill_the_queue<D: TrustedDevice>(shards: [Shard<D>; 2]) {
        let [first, second] = connected(shards, any_port(), QUEUES.recv_depth).unwrap();
        let both = [&first.shard, &second.shard];
        for round in 0..100_u8 {
            first.connection.send_inline(&[round]).unwrap();
            let received = done(both, "a message", second.connection.recv()).unwrap();
            assert_eq!(received[..], [round]);
        }
    }

    pub(super) fn both_sides_can_be_on_one_shard<D: TrustedDevice>([shard, _]: [Shard<D>; 2]) {
        let [first, second] = connected([shard.clone(), shard], any_port(), 4).unwrap();
        let both = [&first.shard, &second.shard];
        // The pool of either side will do.
        drop(done(both, "a completion", first.connection.send(second.pool.copy_of(b"!").unwrap())).unwrap());
        assert_eq!(&done(both, "a message", second.connection.recv()).unwrap()[..], b"!");
    }
}
