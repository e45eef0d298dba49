//! How the two processes at the ends of a connection come to share a segment. Every call is done at
//! once: what would have to be waited for is given up.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::channel::Channel;
use super::conditions::{is_affordable, is_memory_certain, is_same_user};
use super::notifier::Notifier;
use super::segment::{Segment, Side};
use crate::{Memory, MemoryRegion};

/// What the active side says of where it can be met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invitation([u8; Self::LENGTH]);

/// The memory that a side lets the other write.
#[derive(Debug, Clone)]
pub struct Target {
    /// By which writes name it.
    pub key: u32,
    /// At least 16 KiB, so that it is pages of its own.
    pub memory: Arc<Memory>,
}

/// The active side, waiting for its visitor.
pub struct Meeting {
    listener: OwnedFd,
    secret: Secret,
    target: Target,
}

type Secret = [u8; 16];
/// Part of the socket's name.
type Name = [u8; 8];

/// What the passive side says when it hands the segment over: the secret, the connection's two
/// addresses (active side's first), key and size of its target.
struct Greeting {
    secret: Secret,
    addresses: [u8; 2 * ADDRESS],
    key: u32,
    size: u32,
}

/// Bytes of an address, as IPv6 with its port.
const ADDRESS: usize = 16 + 2;
/// Connections to the Unix socket that are looked at: the visitor's, and strangers' before it.
const VISITORS: usize = 4;

impl Invitation {
    /// Bytes of an invitation.
    pub const LENGTH: usize = size_of::<Name>() + size_of::<Secret>() + 4 + 4;

    /// An invitation that came from a peer.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// For a peer.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn new(name: Name, secret: Secret, target: &Target) -> Option<Self> {
        let mut bytes = Vec::with_capacity(Self::LENGTH);
        bytes.extend_from_slice(&name);
        bytes.extend_from_slice(&secret);
        bytes.extend_from_slice(&target.key.to_be_bytes());
        bytes.extend_from_slice(&target.size()?.to_be_bytes());
        Self::from_bytes(&bytes)
    }

    /// Name, secret, key and size of the target.
    fn parse(&self) -> Option<(Name, Secret, u32, u32)> {
        let (name, rest) = self.0.split_first_chunk()?;
        let (secret, rest) = rest.split_first_chunk()?;
        let (key, size) = rest.split_first_chunk()?;
        Some((*name, *secret, u32::from_be_bytes(*key), u32::from_be_bytes(size.try_into().ok()?)))
    }
}

impl Target {
    /// The region that a device gives a peer to write.
    #[must_use]
    pub fn of(region: &dyn MemoryRegion) -> Self {
        Self { key: region.remote_key(), memory: Arc::clone(region.memory()) }
    }

    fn size(&self) -> Option<u32> {
        u32::try_from(self.memory.len()).ok()
    }
}

impl Meeting {
    /// Opens a place to meet a peer at `remote`, which may write `target`. `None`: it is on another
    /// host, or something is missing.
    #[must_use]
    pub fn open(target: Target, remote: SocketAddr) -> Option<(Self, Invitation)> {
        if !target.memory.is_movable() || !is_here(remote) || !is_memory_certain() {
            return None;
        }
        let (mut name, mut secret) = (Name::default(), Secret::default());
        getrandom::fill(&mut name).ok()?;
        getrandom::fill(&mut secret).ok()?;
        let invitation = Invitation::new(name, secret, &target)?;
        let listener = unix_socket()?;
        net::bind(&listener, &address(name)?).ok()?;
        net::listen(&listener, VISITORS as i32).ok()?;
        Some((Self { listener, secret, target }, invitation))
    }

    /// The peer says that it was there: takes what it brought. `ends` are the connection's addresses,
    /// this side's first; what `target` holds stays if `kept`.
    #[must_use]
    pub fn attend(self, ends: (SocketAddr, SocketAddr), kept: bool) -> Option<Channel> {
        for _ in 0..VISITORS {
            let visitor = net::accept_with(&self.listener, FLAGS).ok()?;
            if let Some(channel) = self.receive(visitor, ends, kept) {
                return Some(channel);
            }
        }
        None
    }

    fn receive(&self, visitor: OwnedFd, ends: (SocketAddr, SocketAddr), kept: bool) -> Option<Channel> {
        if !is_same_user(visitor.as_fd()) {
            return None;
        }
        let (greeting, file) = receive(visitor.as_fd())?;
        if greeting.secret != self.secret || greeting.addresses != encode(ends) {
            return None;
        }
        let segment = Segment::of_peer(file, [self.target.size()?, greeting.size])?;
        let board = segment.board().ok()?;
        let memory = segment.region(Side::Passive).ok()?;
        segment.adopt(Side::Active, &self.target.memory, kept).ok()?;
        board.join();
        let peer = Target { key: greeting.key, memory };
        Some(Channel::new(&board, Side::Active, self.target.key, peer, Notifier::new(visitor)))
    }
}

impl Channel {
    /// The passive side: goes where `invitation` says, and hands a segment over. `ends` are the
    /// connection's addresses, this side's first; what `target` holds is lost.
    #[must_use]
    pub fn visit(
        invitation: &Invitation,
        target: &Target,
        (own, peers): (SocketAddr, SocketAddr),
    ) -> Option<Self> {
        let (name, secret, key, size) = invitation.parse()?;
        if (size as usize) < Memory::MOVABLE_LEAST
            || !is_one_host(own.ip(), peers.ip())
            || !is_memory_certain()
        {
            return None;
        }
        let visit = unix_socket()?;
        net::connect(&visit, &address(name)?).ok()?;
        if !is_same_user(visit.as_fd()) {
            return None;
        }
        let segment = Segment::new([size, target.size()?]).ok()?;
        let board = segment.board().ok()?;
        let memory = segment.region(Side::Active).ok()?;
        segment.adopt(Side::Passive, &target.memory, false).ok()?;
        let greeting =
            Greeting { secret, addresses: encode((peers, own)), key: target.key, size: target.size()? };
        greeting.send(visit.as_fd(), segment.file())?;
        Some(Self::new(&board, Side::Passive, target.key, Target { key, memory }, Notifier::new(visit)))
    }
}

impl Greeting {
    const LENGTH: usize = size_of::<Secret>() + 2 * ADDRESS + 4 + 4;

    fn parse(bytes: &[u8; Self::LENGTH]) -> Option<Self> {
        let (secret, rest) = bytes.split_first_chunk()?;
        let (addresses, rest) = rest.split_first_chunk()?;
        let (key, size) = rest.split_first_chunk()?;
        Some(Self {
            secret: *secret,
            addresses: *addresses,
            key: u32::from_be_bytes(*key),
            size: u32::from_be_bytes(size.try_into().ok()?),
        })
    }

    /// Sends it, with the segment.
    fn send(&self, socket: BorrowedFd<'_>, segment: BorrowedFd<'_>) -> Option<()> {
        let (key, size) = (self.key.to_be_bytes(), self.size.to_be_bytes());
        let parts: [&[u8]; 4] = [&self.secret, &self.addresses, &key, &size];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [segment];
        let added = control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = net::sendmsg(socket, &parts.map(IoSlice::new), &mut control, flags);
        (added && sent == Ok(Self::LENGTH)).then_some(())
    }
}

/// What a visitor hands over.
fn receive(socket: BorrowedFd<'_>) -> Option<(Greeting, OwnedFd)> {
    let mut bytes = [0; Greeting::LENGTH];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags).ok()?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    let whole = received.bytes == Greeting::LENGTH;
    let greeting = Greeting::parse(&bytes).filter(|_| whole)?;
    let [segment] = descriptors.try_into().ok()?;
    Some((greeting, segment))
}

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A Unix socket, if this process can spare one.
fn unix_socket() -> Option<OwnedFd> {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None).ok()?;
    is_affordable(socket.as_fd()).then_some(socket)
}

/// The place that a name names: nothing of it is in the file system.
fn address(name: Name) -> Option<SocketAddrUnix> {
    let text = format!("rstream-2-{:016x}", u64::from_be_bytes(name));
    SocketAddrUnix::new_abstract_name(text.as_bytes()).ok()
}

/// Whether `remote` is an address of this host: then it is its own way to itself.
fn is_here(remote: SocketAddr) -> bool {
    if remote.ip().to_canonical().is_loopback() {
        return true;
    }
    let family = if remote.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let chosen = || {
        let socket = net::socket_with(family, SocketType::DGRAM, FLAGS, None)?;
        net::connect(&socket, &remote)?;
        net::getsockname(&socket)
    };
    let local = chosen().ok().and_then(|address| SocketAddr::try_from(address).ok());
    local.is_some_and(|local| is_one_host(local.ip(), remote.ip()))
}

fn is_one_host(one: IpAddr, other: IpAddr) -> bool {
    let (one, other) = (one.to_canonical(), other.to_canonical());
    one == other || one.is_loopback() && other.is_loopback()
}

/// Two addresses, such that both ends of a connection come to the same bytes.
fn encode((first, second): (SocketAddr, SocketAddr)) -> [u8; 2 * ADDRESS] {
    let mut bytes = [0; 2 * ADDRESS];
    for (place, address) in bytes.chunks_exact_mut(ADDRESS).zip([first, second]) {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        place[..16].copy_from_slice(&ip.octets());
        place[16..].copy_from_slice(&address.port().to_be_bytes());
    }
    bytes
}

#[cfg(all(test, not(loom)))]
mod tests;
