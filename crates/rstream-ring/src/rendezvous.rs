//! How the two processes at the ends of a connection come to share a segment.
//!
//! ```text
//! one side                                           the other side
//! Rendezvous::new ──── over their connection ─────▶  Rendezvous::from_bytes
//! listen                                             connect: makes the segment, hands it over
//! Listener::accept: checks it, maps it
//!        └───────────────── Connected ────────────────────┘
//! ```
//!
//! They meet at a Unix socket. Whoever connects to it has to know the secret, to have the same user, and to
//! name the very addresses of the connection. If the addresses are those of a TCP connection of this host,
//! the user of that connection's socket will do as well. The Unix socket then is their [`Notifier`]. Every
//! call returns at once: what would have to be waited for is asked for again, or given up.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Resource, getrlimit};

use crate::diagnostics::user_of_socket;
use crate::user::{is_same_user, is_user};
use crate::{Error, Notifier, Reader, Result, RingSizes, Segment, Writer};

/// Where two processes meet: the name of a Unix socket, and a secret. One side makes it, and tells the other
/// over their connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rendezvous {
    name: [u8; 8],
    secret: [u8; 16],
    keeps: Keeps,
}

/// How long the sides keep the socket at which they meet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    /// As their notifier.
    Always,
    /// Until they have met.
    Briefly,
}

/// The side that waits for the other.
#[derive(Debug)]
pub struct Listener {
    socket: Arc<Place>,
    rendezvous: Rendezvous,
    /// Processes that connected and have not said who they are.
    strangers: Vec<OwnedFd>,
}

/// The socket of a listener, unless its descriptor was needed.
#[derive(Debug)]
struct Place(Mutex<Option<OwnedFd>>);

/// The listeners that keep their sockets briefly, with the numbers of these, the oldest first. Most of their peers
/// never come.
static WAITING: Mutex<VecDeque<(Weak<Place>, u64)>> = Mutex::new(VecDeque::new());

/// A side that shares a segment with its peer.
pub struct Connected {
    /// The ring that this side writes.
    pub output: Writer,
    /// The ring that this side reads.
    pub input: Reader,
    /// By which the sides wake each other.
    pub notifier: Notifier,
}

/// What the side that connects says: the secret, and the addresses of the connection, the listening side's
/// first.
type Hello = [u8; 16 + 2 * ADDRESS];

/// Bytes of an address: IPv6 and the port.
const ADDRESS: usize = 16 + 2;
/// Connections that wait to be looked at: the peer's, and those of strangers before it.
const STRANGERS: usize = 4;
/// A process keeps what it has beyond one in so many of the descriptors that it may have,
const SPARE: u64 = 32;
/// or beyond this many, if they are no more than one in so many.
const SPARE_LEAST: (u64, u64) = (256, 4);
/// The 64-bit hash of Fowler, Noll and Vo, variant 1a: names of connections need to differ, not to be secret.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;
/// Of its descriptors, one in so many are left to a process that needs one for a moment.
const BRIEF_SPARE: u64 = 8;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

impl Rendezvous {
    /// Bytes that the peer is told.
    pub const LENGTH: usize = 8 + 16;

    /// A new one, with a peer at `remote`. `None`: the peer is on another host, or the system has no random
    /// numbers now.
    #[must_use]
    pub fn new(remote: SocketAddr) -> Option<Self> {
        let mut bytes = [0; Self::LENGTH];
        if !is_here(remote) {
            return None;
        }
        getrandom::fill(&mut bytes).ok()?;
        Self::from_bytes(&bytes)
    }

    /// The one of a TCP connection, which both sides know without a word: `active` is the side that
    /// connected. Its secret is none. `None`: the two are on different hosts.
    #[must_use]
    pub fn of_connection(active: SocketAddr, passive: SocketAddr) -> Option<Self> {
        let known = Self { name: [0; 8], secret: [0; 16], keeps: Keeps::Briefly };
        let name = known
            .hello((active, passive))
            .into_iter()
            .fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
        is_one_host(active.ip(), passive.ip()).then_some(Self { name: name.to_be_bytes(), ..known })
    }

    /// One that came from the peer.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (name, secret) = bytes.split_first_chunk()?;
        Some(Self { name: *name, secret: secret.try_into().ok()?, keeps: Keeps::Always })
    }

    /// To be told to the peer.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..8].copy_from_slice(&self.name);
        bytes[8..].copy_from_slice(&self.secret);
        bytes
    }

    /// Waits for the peer.
    ///
    /// # Errors
    /// [`Error::Io`] with what the system says, also if this process has few descriptors left.
    pub fn listen(self) -> Result<Listener> {
        let socket = unix_socket(self.keeps)?;
        net::bind(&socket, &self.address()?).map_err(Error::io("bind"))?;
        net::listen(&socket, STRANGERS as i32).map_err(Error::io("listen"))?;
        let number = number(socket.as_fd());
        let socket = Arc::new(Place(Mutex::new(Some(socket))));
        if self.keeps == Keeps::Briefly {
            // Another thread is at it, or was when this process was forked: then the socket is kept.
            if let Ok(mut waiting) = WAITING.try_lock() {
                waiting.push_back((Arc::downgrade(&socket), number));
            }
        }
        Ok(Listener { socket, rendezvous: self, strangers: Vec::new() })
    }

    /// Makes a segment and hands it over to the peer, who finds it with [`Listener::accept`]. `ends` are the
    /// addresses of the connection, this side's first. `None`: the peer does not listen, now.
    ///
    /// # Errors
    /// [`Error::NoPeer`] if the addresses are of two hosts or the process that listens has the wrong user;
    /// those of [`Segment::create`] and [`Segment::map`]; [`Error::Io`].
    pub fn connect(
        self,
        (own, peers): (SocketAddr, SocketAddr),
        sizes: RingSizes,
    ) -> Result<Option<Connected>> {
        if !is_one_host(own.ip(), peers.ip()) {
            return Err(Error::NoPeer("it is on another host"));
        }
        let socket = unix_socket(self.keeps)?;
        match net::connect(&socket, &self.address()?) {
            Ok(()) => {}
            Err(Errno::CONNREFUSED) => return Ok(None),
            Err(errno) => return Err(Error::io("connect")(errno)),
        }
        self.check_user(socket.as_fd(), (peers, own))?;
        let segment = Segment::create(sizes)?;
        let (output, input) = segment.map()?;
        send(socket.as_fd(), &self.hello((peers, own)), segment.as_fd())?;
        Ok(Some(Connected { output, input, notifier: Notifier::new(socket) }))
    }

    /// Nothing of it is in the file system.
    fn address(self) -> Result<SocketAddrUnix> {
        let text = format!("rstream-3-{:016x}", u64::from_be_bytes(self.name));
        SocketAddrUnix::new_abstract_name(text.as_bytes()).map_err(Error::io("the name of a socket"))
    }

    /// Whether the process at the other end is one that may share memory. `ends` are the addresses of the
    /// connection, the peer's first.
    fn check_user(&self, socket: BorrowedFd<'_>, ends: (SocketAddr, SocketAddr)) -> Result<()> {
        // Those that meet briefly keep the TCP connection, whose socket the kernel knows by these addresses.
        let is_of_connection =
            || self.keeps == Keeps::Briefly && user_of_socket(ends).is_some_and(|user| is_user(socket, user));
        if is_same_user(socket) || is_of_connection() {
            Ok(())
        } else {
            Err(Error::NoPeer("it is neither this user's nor the connection's"))
        }
    }

    fn hello(&self, ends: (SocketAddr, SocketAddr)) -> Hello {
        let mut hello = [0; size_of::<Hello>()];
        let (secret, addresses) = hello.split_at_mut(self.secret.len());
        secret.copy_from_slice(&self.secret);
        for (place, address) in addresses.chunks_exact_mut(ADDRESS).zip([ends.0, ends.1]) {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            place[..16].copy_from_slice(&ip.octets());
            place[16..].copy_from_slice(&address.port().to_be_bytes());
        }
        hello
    }
}

impl std::fmt::Debug for Rendezvous {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rendezvous({:016x})", u64::from_be_bytes(self.name))
    }
}

impl Listener {
    /// Whether somebody has come, the peer or a stranger, of whom [`accept`](Self::accept) has to tell.
    ///
    /// # Errors
    /// [`Error::Io`], with `EMFILE` if the process needed this listener's descriptor.
    pub fn has_callers(&mut self) -> Result<bool> {
        // Somebody takes it away just now.
        let Ok(held) = self.socket.0.try_lock() else { return Ok(false) };
        let socket = held.as_ref().ok_or_else(|| Error::io("accept")(Errno::MFILE))?;
        while self.strangers.len() < STRANGERS {
            match net::accept_with(socket, FLAGS) {
                Ok(stranger) => self.strangers.push(move_up(stranger)),
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => break,
                Err(errno) => return Err(Error::io("accept")(errno)),
            }
        }
        Ok(!self.strangers.is_empty())
    }

    /// Looks whether the peer has come. `ends` are the addresses of the connection, this side's first.
    /// `None`: it has not, yet.
    ///
    /// # Errors
    /// [`Error::NoPeer`] if as many strangers came as are looked at; those of [`Segment::from_peer`] and
    /// [`Segment::map`]; those of [`has_callers`](Self::has_callers).
    pub fn accept(&mut self, ends: (SocketAddr, SocketAddr), sizes: RingSizes) -> Result<Option<Connected>> {
        if !self.has_callers()? {
            return Ok(None);
        }
        let expected = self.rendezvous.hello(ends);
        for at in 0..self.strangers.len() {
            let Some((hello, file)) = receive(self.strangers[at].as_fd())? else { continue };
            if hello == expected {
                let socket = self.strangers.swap_remove(at);
                self.rendezvous.check_user(socket.as_fd(), (ends.1, ends.0))?;
                let (output, input) = Segment::from_peer(file, sizes)?.map()?;
                return Ok(Some(Connected { output, input, notifier: Notifier::new(socket) }));
            }
        }
        if self.strangers.len() == STRANGERS { Err(Error::NoPeer("others came")) } else { Ok(None) }
    }
}

/// Sends what the peer has to know, with the segment.
fn send(socket: BorrowedFd<'_>, hello: &Hello, segment: BorrowedFd<'_>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [segment];
    let added = control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match net::sendmsg(socket, &[IoSlice::new(hello)], &mut control, flags) {
        Ok(length) if added && length == hello.len() => Ok(()),
        Ok(_) => Err(Error::io("sendmsg")(Errno::MSGSIZE)),
        Err(errno) => Err(Error::io("sendmsg")(errno)),
    }
}

/// What a process that connected says, and the file that it hands over. `None`: nothing yet, or something
/// else.
fn receive(socket: BorrowedFd<'_>) -> Result<Option<(Hello, OwnedFd)>> {
    let mut hello = [0; size_of::<Hello>()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match net::recvmsg(socket, &mut [IoSliceMut::new(&mut hello)], &mut control, flags) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNRESET) => return Ok(None),
        Err(errno) => return Err(Error::io("recvmsg")(errno)),
    };
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            files.extend(some);
        }
    }
    let file = <[OwnedFd; 1]>::try_from(files).ok().filter(|_| received.bytes == hello.len());
    Ok(file.map(|[file]| (hello, file)))
}

/// A Unix socket, if this process can spare one.
fn unix_socket(keeps: Keeps) -> Result<OwnedFd> {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
        .map_err(Error::io("socket"))?;
    if keeps == Keeps::Briefly {
        make_room(number(socket.as_fd()));
    }
    if is_affordable(socket.as_fd(), keeps) {
        Ok(move_up(socket))
    } else {
        Err(Error::io("socket")(Errno::MFILE))
    }
}

/// Has the oldest listeners give their sockets up while the process has few descriptors left. `lowest`: the lowest
/// number that was free.
fn make_room(lowest: u64) {
    let Some(most) = getrlimit(Resource::Nofile).current else { return };
    let Ok(mut waiting) = WAITING.try_lock() else { return };
    // Those whose listeners are gone, from time to time.
    if waiting.len() == waiting.capacity() {
        waiting.retain(|(place, _)| place.strong_count() > 0);
    }
    if waiting.is_empty() {
        return;
    }
    // Where the system does not tell: all below the lowest, and the listeners above.
    let used = open_files()
        .unwrap_or_else(|| lowest + waiting.iter().filter(|&&(_, number)| number > lowest).count() as u64);
    for _ in most - most / BRIEF_SPARE..used {
        // One whose thread looks for its peer just now keeps it.
        let given_up = std::iter::from_fn(|| waiting.pop_front()).find_map(|(oldest, _)| {
            let place = oldest.upgrade()?;
            place.0.try_lock().ok()?.take()
        });
        if given_up.is_none() {
            return;
        }
    }
}

/// How many descriptors the process has, which the system tells since Linux 6.2.
fn open_files() -> Option<u64> {
    let folder = rustix::fs::stat("/proc/self/fd").ok()?;
    u64::try_from(folder.st_size).ok().filter(|&count| count > 0)
}

fn number(descriptor: BorrowedFd<'_>) -> u64 {
    u64::from(descriptor.as_raw_fd().unsigned_abs())
}

/// Gives a descriptor of this library a number that an application does not expect: the lowest that is free
/// is the next one that it gets itself. The descriptor stays as it is if there is none.
#[must_use]
pub fn move_up(descriptor: OwnedFd) -> OwnedFd {
    copy_up(descriptor.as_fd()).unwrap_or(descriptor)
}

fn copy_up(descriptor: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    // More would make the system's table of descriptors long.
    const ABOUT: u64 = 1024;
    let most = getrlimit(Resource::Nofile).current.unwrap_or(ABOUT).min(ABOUT);
    rustix::io::fcntl_dupfd_cloexec(descriptor, (most - most / 4) as i32)
}

/// Has the system make its table of descriptors as long as [`move_up`] needs it.
///
/// That takes some microseconds in a process of one thread. In one of several the system waits until none of them
/// looks at the table that was, some 10 ms: call this early. Nothing depends on it but speed.
pub fn lengthen_table() {
    // It need not be open. A process that forbids itself system calls allows these, rather than to make a file.
    drop(copy_up(rustix::stdio::stderr()));
}

/// Whether a process that was given this descriptor has enough others left: shared memory takes one for each
/// connection, and is a convenience. The system gives the lowest number that is free.
fn is_affordable(descriptor: BorrowedFd<'_>, keeps: Keeps) -> bool {
    let number = number(descriptor);
    let (least, share) = SPARE_LEAST;
    let spare = |most: u64| match keeps {
        Keeps::Always => (most / SPARE).max(least.min(most / share)),
        Keeps::Briefly => most - most / BRIEF_SPARE,
    };
    getrlimit(Resource::Nofile).current.is_none_or(|most| number < spare(most))
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

#[cfg(test)]
mod tests;
