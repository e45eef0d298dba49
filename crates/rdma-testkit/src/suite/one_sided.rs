//! RDMA writes and reads, and the violations that the target refuses.

use rdma_verbs::{
    Access, Completion, CompletionKind, CompletionStatus, Device, Error, Memory, MemoryRegion, Operation,
    Payload, ProtectionDomain as _, QueuePairs as _, RemoteAddress, SendRequest, Transport,
};

use super::rig::Rig;
use crate::harness::{Joined, Pair, SEND, bytes, pattern, remote, segment, success};

fn write(remote: RemoteAddress) -> Operation {
    Operation::Write { remote, immediate: None }
}

pub fn writes_are_placed_at_their_addresses(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    let size = 100_000;
    let window = pair.passive.region(size, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let source = pair.active.region(size, Access::empty());
    source.memory().write(0, &pattern(size, 1)).unwrap();
    let mut expected = vec![0; size];
    let places = [(0, 1), (1, 7), (20, 0), (99_999, 1), (4096, 65_536), (30, 1000)];
    for (id, (offset, length)) in places.into_iter().enumerate() {
        let id = id as u64;
        pair.active.post(
            joined.active,
            id,
            write(remote(&window, offset)),
            &[segment(&source, id as usize, length)],
        );
        // The later send shows when the write has been placed.
        pair.active.post(joined.active, 100, SEND, &[]);
        assert_eq!(pair.at_active(), success(joined.active, id, CompletionKind::Write));
        assert_eq!(pair.at_active(), success(joined.active, 100, CompletionKind::Send));
        assert_eq!(pair.at_passive(), success(joined.passive, id, CompletionKind::Recv));
        expected[offset..offset + length].copy_from_slice(&pattern(size, 1)[id as usize..][..length]);
        assert!(bytes(&window) == expected, "{length} bytes at {offset}");
    }
}

pub fn fenced_requests_have_what_reads_fetch(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let size = 50_000;
    let inbox = pair.passive.region(size, Access::LOCAL_WRITE);
    let window =
        pair.passive.region(2 * size, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE);
    window.memory().write(0, &pattern(size, 5)).unwrap();
    let joined = pair.join(|pair, joined| {
        pair.passive.receive_into(joined.passive, 7, segment(&inbox, 0, size));
        pair.passive.post_empty_receives(joined.passive, 2);
    });
    let middle = pair.active.region(size, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let pieces = [segment(&middle, 0, size)];
    let read = Operation::Read { remote: remote(&window, 0) };
    let copy = write(remote(&window, size));
    let request = |id, operation, payload| SendRequest { id, signaled: true, operation, payload };
    // Read, send and write in one list; the last send shows when the write has been placed.
    let requests = [
        request(1, read, Payload::Segments(&pieces)),
        request(2, SEND, Payload::Fenced(&pieces)),
        request(3, copy, Payload::Fenced(&pieces)),
        request(4, SEND, Payload::Fenced(&[])),
    ];
    pair.active.cq.post_send(joined.active, &requests, false).unwrap();
    let arrived = success(joined.passive, 7, CompletionKind::Recv);
    assert_eq!(pair.at_passive(), Completion { length: size as u32, ..arrived });
    assert!(bytes(&inbox) == pattern(size, 5), "the send has what the read has fetched");
    assert_eq!(pair.at_passive(), success(joined.passive, 0, CompletionKind::Recv));
    assert!(bytes(&window)[size..] == pattern(size, 5), "and so has the write");
    let mut done = [(); 4].map(|()| pair.at_active().id);
    done.sort_unstable();
    assert_eq!(done, [1, 2, 3, 4]);

    for refused in [
        request(5, read, Payload::Fenced(&pieces)),
        request(6, Operation::Write { remote: remote(&window, 0), immediate: Some(1) }, Payload::Fenced(&[])),
    ] {
        let refused = pair.active.cq.post_send(joined.active, &[refused], false);
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    }
    pair.assert_works(joined);
}

/// What a peer writes to a file's mapping is in the file, and what is in a box need not be copied.
pub fn memory_of_every_kind_can_be_registered(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    let size = 10_000;
    let file = rustix::fs::memfd_create("registered", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, size as u64).unwrap();
    let mapped = Memory::of_file(&file, 0, size).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let window = pair.passive.pd.register(mapped, access).unwrap();
    let boxed = Memory::from_boxed(pattern(size, 9).into());
    let source = pair.active.pd.register(boxed, Access::empty()).unwrap();
    pair.active.post(joined.active, 1, write(remote(&window, 0)), &[segment(&source, 0, size)]);
    pair.active.post(joined.active, 2, SEND, &[]);
    assert_eq!(pair.at_passive(), success(joined.passive, 0, CompletionKind::Recv));
    let mut found = vec![0; size];
    assert_eq!(rustix::io::pread(&file, &mut found, 0), Ok(size));
    assert!(found == pattern(size, 9));
    // Huge pages are there if the system has reserved some.
    match Memory::huge(size) {
        Ok(huge) => {
            assert_eq!(huge.len(), 2 << 20);
            let huge = pair.passive.pd.register(huge, access).unwrap();
            pair.active.post(joined.active, 3, write(remote(&huge, 0)), &[segment(&source, 0, size)]);
            pair.active.post(joined.active, 4, SEND, &[]);
            assert_eq!(pair.at_passive(), success(joined.passive, 1, CompletionKind::Recv));
            assert!(bytes(&huge)[..size] == pattern(size, 9));
        }
        Err(error) => assert!(matches!(error, Error::Io { .. }), "{error}"),
    }
}

/// An unsignaled request reports no success, whatever its length. After the completion of a later request its
/// memory can be used again.
pub fn unsignaled_writes_complete_with_later_requests(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    let size = 65_536;
    let window = pair.passive.region(4 * size, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let source = pair.active.region(size, Access::empty());
    for at in 0..4 {
        source.memory().write(0, &pattern(size, at)).unwrap();
        let pieces = [segment(&source, 0, size)];
        let operation = write(remote(&window, at * size));
        let payload = Payload::Segments(&pieces);
        let silent = SendRequest { id: 7, signaled: false, operation, payload };
        pair.active.cq.post_send(joined.active, &[silent], false).unwrap();
        pair.active.post(joined.active, 100, SEND, &[]);
        assert_eq!(pair.at_active(), success(joined.active, 100, CompletionKind::Send));
        source.memory().write(0, &vec![0; size]).unwrap();
        assert_eq!(pair.at_passive(), success(joined.passive, at as u64, CompletionKind::Recv));
        assert!(bytes(&window)[at * size..][..size] == pattern(size, at), "round {at}");
    }
}

pub fn writes_carry_immediate_data(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    let window = pair.passive.region(64, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let source = pair.active.region(64, Access::empty());
    source.memory().write(0, &pattern(64, 2)).unwrap();
    let operation =
        |offset, word| Operation::Write { remote: remote(&window, offset), immediate: Some(word) };
    if pair.active.device.attributes().immediate == 0 {
        let answer = pair.active.post_inline(joined.active, 0, operation(0, 0), b"");
        assert!(matches!(answer, Err(Error::Unsupported(_))), "{answer:?}");
        return pair.assert_works(joined);
    }
    for (id, (offset, length)) in [(0, 64), (63, 1), (0, 0)].into_iter().enumerate() {
        let id = id as u64;
        let word = 0xfedc_ba98 ^ id;
        pair.active.post(joined.active, id, operation(offset, word), &[segment(&source, 0, length)]);
        assert_eq!(pair.at_active(), success(joined.active, id, CompletionKind::Write));
        let mut expected = success(joined.passive, id, CompletionKind::RecvWrite);
        (expected.length, expected.immediate) = (length as u32, Some(word));
        assert_eq!(pair.at_passive(), expected);
        assert_eq!(bytes(&window)[offset..offset + length], pattern(64, 2)[..length]);
    }
}

pub fn reads_fetch_the_peers_memory(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    let size = 70_000;
    let window = pair.passive.region(size, Access::REMOTE_READ);
    window.memory().write(0, &pattern(size, 3)).unwrap();
    let target = pair.active.region(size, Access::LOCAL_WRITE);
    let mut expected = vec![0; size];
    if !rig.reads_complete_in_order() {
        return reads_of_something(pair, joined);
    }
    // More reads than may be outstanding, and then a send.
    let places = [(0, 1), (69_999, 1), (100, 66_000), (5, 3), (7, 0), (9, 9), (20, 1)];
    for (id, (offset, length)) in places.into_iter().enumerate() {
        let read = Operation::Read { remote: remote(&window, offset) };
        pair.active.post(joined.active, id as u64, read, &[segment(&target, offset, length)]);
        expected[offset..offset + length].copy_from_slice(&pattern(size, 3)[offset..offset + length]);
    }
    pair.active.post(joined.active, 100, SEND, &[]);
    for id in 0..places.len() as u64 {
        assert_eq!(pair.at_active(), success(joined.active, id, CompletionKind::Read));
    }
    assert_eq!(pair.at_active(), success(joined.active, 100, CompletionKind::Send));
    assert!(bytes(&target) == expected);
    assert_eq!(pair.at_passive(), success(joined.passive, 0, CompletionKind::Recv));
}

/// Reads on a device that may complete later requests before a read, and on which a read of no bytes must be
/// the only outstanding one.
fn reads_of_something<D: Device>(mut pair: Pair<D>, joined: Joined) {
    let window = pair.passive.region(66_000, Access::REMOTE_READ);
    window.memory().write(0, &pattern(66_000, 3)).unwrap();
    let target = pair.active.region(66_000, Access::LOCAL_WRITE);
    let read = Operation::Read { remote: remote(&window, 0) };
    let lengths = [1, 1, 66_000, 3, 9, 1, 2];
    for (id, length) in lengths.into_iter().enumerate() {
        pair.active.post(joined.active, id as u64, read, &[segment(&target, 0, length)]);
    }
    for id in 0..lengths.len() as u64 {
        assert_eq!(pair.at_active(), success(joined.active, id, CompletionKind::Read));
    }
    assert!(bytes(&target) == pattern(66_000, 3));
    pair.active.post(joined.active, 100, read, &[segment(&target, 0, 0)]);
    assert_eq!(pair.at_active(), success(joined.active, 100, CompletionKind::Read));
    pair.assert_works(joined);
}

pub fn violations_break_one_connection_only(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let bystander = pair.join_with_receives();
    let readable = pair.passive.region(64, Access::REMOTE_READ);
    let writable = pair.passive.region(64, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let private = pair.passive.region(64, Access::LOCAL_WRITE);
    let scratch = pair.active.region(64, Access::LOCAL_WRITE);
    scratch.memory().write(0, &[0xee; 64]).unwrap();
    let read = |remote| Operation::Read { remote };
    let wrong_key = RemoteAddress { key: remote(&writable, 0).key ^ 0x5a5a_5a00, ..remote(&writable, 0) };
    let far = RemoteAddress { address: u64::MAX - 3, ..remote(&writable, 0) };
    let before = RemoteAddress { address: writable.address().wrapping_sub(1), ..remote(&writable, 0) };
    let cases = [
        ("write without right", write(remote(&readable, 0)), 8),
        ("write to private memory", write(remote(&private, 0)), 8),
        ("write with a wrong key", write(wrong_key), 8),
        ("write across the end", write(remote(&writable, 60)), 5),
        ("write beyond the end", write(remote(&writable, 64)), 1),
        ("write that wraps the address space", write(far), 8),
        ("write before the beginning", write(before), 8),
        ("read without right", read(remote(&writable, 0)), 8),
        ("read across the end", read(remote(&readable, 60)), 5),
        ("read with a wrong key", read(wrong_key), 8),
    ];
    for (what, operation, length) in cases {
        if matches!(operation, Operation::Read { .. }) && !rig.refuses_wrong_reads() {
            continue;
        }
        let joined = pair.join_with_receives();
        pair.active.post(joined.active, 1, operation, &[segment(&scratch, 0, length)]);
        for passive in [true, false] {
            let event = pair.event(joined, passive);
            assert!(rig.is_break(&event), "{what}: {event:?}");
        }
        let completion = pair.at_active();
        assert_eq!(completion.id, 1, "{what}");
        // On iWARP a write completes before the peer has checked it.
        let is_reported = matches!(operation, Operation::Read { .. })
            || pair.active.device.attributes().transport == Transport::InfiniBand;
        let expected = if is_reported { CompletionStatus::RemoteAccess } else { CompletionStatus::Success };
        assert_eq!(completion.status, expected, "{what}");
        pair.drive_until_idle();
        assert!(pair.passive.completions.iter().all(|left| left.status == CompletionStatus::Flushed));
        pair.passive.completions.clear();
        for region in [&readable, &writable, &private] {
            assert_eq!(bytes(region), [0; 64], "{what}");
        }
        assert_eq!(bytes(&scratch), [0xee; 64], "{what}");
        pair.assert_works(bystander);
    }
}

pub fn remote_keys_end_with_their_region(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    let window = pair.passive.region(8, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let (target, memory) = (remote(&window, 0), window.memory().clone());
    let source = pair.active.region(8, Access::empty());
    source.memory().write(0, &[1; 8]).unwrap();
    drop(window);
    pair.active.post(joined.active, 0, write(target), &[segment(&source, 0, 8)]);
    for passive in [true, false] {
        assert!(rig.is_break(&pair.event(joined, passive)));
    }
    let mut left = [9; 8];
    memory.read(0, &mut left).unwrap();
    assert_eq!(left, [0; 8]);
}

/// [RFC 5040 8.1.1-3] [RFC 5041 8.3.1-3]
pub fn nothing_outside_the_region_is_touched(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    // Three regions, whose memory is probably adjacent.
    let regions: Vec<_> =
        (0..3).map(|_| pair.passive.region(64, Access::REMOTE_WRITE | Access::LOCAL_WRITE)).collect();
    let source = pair.active.region(64, Access::empty());
    source.memory().write(0, &[3; 64]).unwrap();
    pair.active.post(joined.active, 0, write(remote(&regions[1], 0)), &[segment(&source, 0, 64)]);
    pair.active.post(joined.active, 1, SEND, &[]);
    pair.at_passive();
    assert_eq!(bytes(&regions[0]), [0; 64]);
    assert_eq!(bytes(&regions[1]), [3; 64]);
    assert_eq!(bytes(&regions[2]), [0; 64]);
    let keys: std::collections::BTreeSet<_> = regions.iter().map(MemoryRegion::remote_key).collect();
    assert_eq!(keys.len(), 3, "every region has a key of its own");
}
