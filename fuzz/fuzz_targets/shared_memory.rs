//! A peer on the same host, played from `docs/shared-memory.md`: what it hands over when it visits, and what
//! it writes to the memory that it shares.
//!
//! A visit that is right is accepted, and one with another secret or for another connection is not. Whatever
//! the peer writes afterwards, what this side takes from it lies within its own ring, and what this side
//! posts lies where it said in the peer's. No call waits, whatever the peer does with the socket that
//! notifies.

#![no_main]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rdma_verbs::iwarp::machine::{Agreement, Machine, Side};
use rdma_verbs::iwarp::{MemoryRegion, ProtectionDomain};
use rdma_verbs::shm::{Channel, Invitation, Meeting, Message, Next, SLOTS, Target};
use rdma_verbs::{
    Access, Completion, CompletionKind, Memory, MemoryRegion as _, Operation, Payload, ProtectionDomain as _,
    QpCapabilities, QpId, Buffer, RecvRequest, RemoteAddress, SendRequest,
};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType,
};

/// Bytes of each side's ring.
const SIZE: usize = 20_000;
const PEERS_KEY: u32 = 7;
/// Bytes of the greeting, and of what in it has to be right to the bit: secret and addresses.
const GREETING: usize = 60;
const PROOF: usize = 52;

// Offsets in the segment.
const JOINED: u64 = 0;
const PEERS_LANE: u64 = 128 + 8448;
const CONTROL: u64 = PEERS_LANE + 8448;
const OWN_RING: u64 = 64 * 1024;
const PEERS_RING: u64 = 2 * 64 * 1024;
const SEGMENT: u64 = 3 * 64 * 1024;

#[derive(Debug, Arbitrary)]
struct Input {
    visit: Visit,
    steps: Vec<Step>,
}

#[derive(Debug, Arbitrary)]
enum Visit {
    Right,
    /// A byte of the greeting is another.
    Changed {
        at: u8,
        by: u8,
    },
    /// So much of it.
    Cut {
        length: u8,
    },
    /// So many descriptors: files that are right, or sockets.
    Descriptors {
        count: u8,
        sockets: bool,
    },
    /// A file of another size or with other seals.
    File {
        size: u32,
        seals: u8,
    },
}

#[derive(Debug, Arbitrary)]
enum Step {
    /// The peer writes a message where the next one belongs.
    Say { kind: u8, offset: u16, far: bool, length: u32, word: u32 },
    /// The peer writes a word anywhere in the control part.
    Scribble { at: u16, word: u64 },
    /// The peer says that it has taken so many messages.
    Taken { messages: u16 },
    /// This side takes what there is.
    Take,
    /// So many bytes of the connection's stream come.
    Stream { bytes: u16 },
    /// This side posts a receive.
    Receive,
    /// This side posts writes.
    Post { address: u16, length: u16, immediate: bool, count: u8 },
    /// This side goes to sleep.
    Arm,
    /// The peer sends so many messages of this length by the notifier.
    Notify { count: u16, length: u8 },
    /// The peer closes the notifier.
    Close,
}

fn ends() -> (SocketAddr, SocketAddr) {
    (([127, 0, 0, 1], 1000).into(), ([127, 0, 0, 1], 2000).into())
}

fn file(size: u64, seals: SealFlags) -> OwnedFd {
    let file = rustix::fs::memfd_create("fuzz", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, size).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

fn greeting(invitation: &Invitation) -> Vec<u8> {
    let mut bytes = invitation.as_bytes()[8..24].to_vec();
    for address in [ends().0, ends().1] {
        let SocketAddr::V4(address) = address else { unreachable!("see `ends`") };
        bytes.extend_from_slice(&address.ip().to_ipv6_mapped().octets());
        bytes.extend_from_slice(&address.port().to_be_bytes());
    }
    bytes.extend_from_slice(&PEERS_KEY.to_be_bytes());
    bytes.extend_from_slice(&(SIZE as u32).to_be_bytes());
    bytes
}

impl Visit {
    /// Hands a segment over. Answers it, the socket that notifies from now on, and whether it has to be
    /// accepted or refused, if that is certain.
    fn make(&self, invitation: &Invitation) -> (OwnedFd, OwnedFd, Option<bool>) {
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let mut greeting = greeting(invitation);
        let (mut size, mut seals, mut count, mut sockets) = (SEGMENT, all, 1, false);
        let certain = match *self {
            Self::Right => Some(true),
            Self::Changed { at, by } => {
                let at = usize::from(at) % GREETING;
                greeting[at] ^= by;
                if by == 0 { Some(true) } else { (at < PROOF).then_some(false) }
            }
            Self::Cut { length } => {
                greeting.truncate(usize::from(length) % GREETING);
                Some(false)
            }
            Self::Descriptors { count: some, sockets: instead } => {
                (count, sockets) = (usize::from(some % 5), instead);
                Some(count == 1 && !sockets)
            }
            Self::File { size: some, seals: bits } => {
                size = u64::from(some) % (2 * SEGMENT);
                // Not the one against writing, with which nothing can be mapped.
                seals = SealFlags::from_bits_truncate(u32::from(bits)) & all;
                Some(size == SEGMENT && seals == all)
            }
        };
        let file = file(size, seals);
        let address =
            format!("rstream-2-{:016x}", u64::from_be_bytes(*invitation.as_bytes().first_chunk().unwrap()));
        let address = SocketAddrUnix::new_abstract_name(address.as_bytes()).unwrap();
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        let descriptors = vec![if sockets { socket.as_fd() } else { file.as_fd() }; count];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(count == 0 || control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        rustix::net::sendmsg(&socket, &[IoSlice::new(&greeting)], &mut control, SendFlags::empty()).unwrap();
        (file, socket, certain)
    }
}

/// This side.
struct End {
    channel: Channel,
    machine: Machine,
    ring: MemoryRegion,
    completions: Vec<Completion>,
    /// Receives that were posted and not used.
    receives: usize,
    /// Bytes of the connection's stream that came.
    position: u64,
}

impl End {
    /// Takes messages until there is nothing, or something wrong. Answers whether it can go on.
    fn take(&mut self) -> bool {
        for _ in 0..2 * SLOTS {
            let message = match self.channel.next(self.position) {
                Next::Message(message) => message,
                Next::Garbage(_) => return false,
                Next::Stream(length) => {
                    assert!(length > 0);
                    return true;
                }
                Next::Nothing => return true,
            };
            let before = self.completions.len();
            if self.machine.receive_message(message, self.channel.key(), &mut self.completions).is_err() {
                return false;
            }
            self.channel.take();
            let taken = self.completions.len() - before;
            match message {
                Message::Write { offset, length, immediate } => {
                    assert!(offset + u64::from(length) <= SIZE as u64, "beyond the ring");
                    assert_eq!(taken, usize::from(immediate.is_some()));
                }
                Message::Send { .. } => assert_eq!(taken, 1),
                Message::Stream(_) => unreachable!("the channel keeps these"),
            }
            self.receives = self.receives.checked_sub(taken).expect("a receive for each completion");
            assert!(
                self.completions[before..]
                    .iter()
                    .all(|done| { matches!(done.kind, CompletionKind::Recv | CompletionKind::RecvWrite) })
            );
        }
        true
    }

    /// Posts writes; what they wrote is there if they were posted.
    fn post(&mut self, file: &OwnedFd, address: u16, length: u16, immediate: bool, count: u8) {
        let bytes = [address as u8 ^ 0x5a; 8192];
        let length = usize::from(length) % (bytes.len() + 1);
        let slices = [IoSlice::new(&bytes[..length / 2]), IoSlice::new(&bytes[length / 2..length])];
        let remote = RemoteAddress { key: PEERS_KEY, address: address.into() };
        let operation = Operation::Write { remote, immediate: immediate.then_some(1) };
        let request = SendRequest { id: 0, signaled: false, operation, payload: Payload::Inline(&slices) };
        let posted = self.channel.post(&vec![request; usize::from(count)], 4096, self.position);
        if posted && count > 0 {
            assert!(usize::from(address) + length <= SIZE && length <= 4096);
            let mut there = vec![0; length];
            let read =
                rustix::io::preadv(file, &mut [IoSliceMut::new(&mut there)], PEERS_RING + u64::from(address));
            assert_eq!((read, &there[..]), (Ok(length), &bytes[..length]));
        }
    }
}

fuzz_target!(|input: Input| {
    let domain = ProtectionDomain::default();
    let ring =
        domain.register(Memory::zeroed(SIZE).unwrap(), Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let (meeting, invitation) = Meeting::open(Target::of(&ring), ends().1).unwrap();
    let (file, notifier, certain) = input.visit.make(&invitation);
    let mut notifier = Some(notifier);
    let channel = meeting.attend(ends(), true);
    assert!(certain.is_none_or(|accepted| accepted == channel.is_some()));
    let Some(channel) = channel else { return };

    let capabilities = QpCapabilities {
        send_depth: 8,
        recv_depth: 8,
        inline: 4096,
        initiator_depth: 0,
        responder_resources: 0,
    };
    let mut machine = Machine::new(QpId(1), &domain, capabilities, 1024);
    machine.establish(&Agreement {
        crc: false,
        initiator_depth: 0,
        responder_resources: 0,
        side: Side::Active,
        rtr: false,
    });
    let mut end = End { channel, machine, ring, completions: Vec::new(), receives: 0, position: 0 };
    let put = |at: u64, bytes: &[u8]| {
        assert_eq!(rustix::io::pwrite(&file, bytes, at), Ok(bytes.len()));
    };
    let mut joined = [0; 4];
    rustix::io::pread(&file, &mut joined, JOINED).unwrap();
    assert_eq!(u32::from_ne_bytes(joined), 1);
    let mut said: u64 = 0;
    // A message of no bytes looks like the end of the notifier.
    let mut empty = false;
    for step in &input.steps {
        match *step {
            Step::Say { kind, offset, far, length, word } => {
                let lap = !(said / SLOTS as u64) & 1;
                let offset = u64::from(offset) << if far { 40 } else { 0 };
                let slot = PEERS_LANE + 256 + said % SLOTS as u64 * 16;
                put(slot + 8, &(u64::from(length % (2 * SIZE as u32)) << 32 | u64::from(word)).to_ne_bytes());
                put(slot, &(offset << 8 | u64::from(kind % 6) << 1 | lap).to_ne_bytes());
                said += 1;
            }
            Step::Scribble { at, word } => put(u64::from(at) % (CONTROL / 8) * 8, &word.to_ne_bytes()),
            // Who reads this side's lane says there what it took.
            Step::Taken { messages } => put(128, &u64::from(messages).to_ne_bytes()),
            Step::Take => {
                if !end.take() {
                    break;
                }
            }
            Step::Stream { bytes } => end.position += u64::from(bytes),
            Step::Receive => {
                let posted = end.machine.post_recv(&[RecvRequest { id: 2, buffer: Buffer::Empty }]);
                end.receives += usize::from(posted.is_ok());
            }
            Step::Post { address, length, immediate, count } => {
                end.post(&file, address, length, immediate, count);
            }
            Step::Arm => {
                end.channel.arm();
                assert!(notifier.is_none() || !end.channel.is_alone() || empty);
            }
            Step::Notify { count, length } => {
                let Some(socket) = &notifier else { continue };
                empty |= count > 0 && length == 0;
                for _ in 0..count {
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    if rustix::net::send(socket, &[0; 255][..length.into()], flags).is_err() {
                        break;
                    }
                }
            }
            Step::Close => notifier = None,
        }
    }
    // The own ring is the file's, whatever was written there.
    put(OWN_RING + SIZE as u64 - 1, &[0xa5]);
    let mut last = [0];
    end.ring.memory().read(SIZE as u64 - 1, &mut last).unwrap();
    assert_eq!(last, [0xa5]);
    end.machine.flush(None, &mut end.completions);
});
