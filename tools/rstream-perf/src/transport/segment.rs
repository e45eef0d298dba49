//! The crate `rstream-ring` alone: what two processes of one host have without libfabric and without a
//! connection beside the rings.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use rstream_ring::{Notifier, Reader, RingSizes, Segment, Writer, arm};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::{Connector, Interest, Listener, Stream};

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 4096;

/// One end of both rings.
pub(crate) struct Rings {
    output: Writer,
    input: Reader,
    notifier: Notifier,
    /// Whether the user sleeps after a call that did nothing.
    sleeps: bool,
    /// Whether the last send did nothing, so that the user sleeps for room as well.
    lacks_room: bool,
    /// Whether the last call that did nothing found that another would do something now.
    is_ready: bool,
}

impl Rings {
    fn new(segment: &Segment, socket: OwnedFd, sleeps: bool) -> Result<Self> {
        let (output, input) = segment.map()?;
        let notifier = Notifier::new(socket);
        Ok(Self { output, input, notifier, sleeps, lacks_room: false, is_ready: false })
    }

    fn notifier(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }

    /// After a call that did nothing.
    fn arm(&mut self) {
        if self.sleeps {
            let output = self.lacks_room.then_some((&mut self.output, 1));
            self.is_ready = arm(&self.notifier, Some(&mut self.input), output);
        }
    }
}

impl Stream for Rings {
    #[inline]
    fn send(&mut self, data: &[u8]) -> Result<Option<usize>> {
        let taken = self.output.write(&[IoSlice::new(data)], &self.notifier)?;
        self.lacks_room = taken == 0;
        if self.lacks_room {
            self.arm();
        }
        Ok((taken > 0).then_some(taken))
    }

    #[inline]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        let given = self.input.read(&mut [IoSliceMut::new(buffer)], &self.notifier)?;
        if given.is_none() {
            self.arm();
        }
        Ok(given)
    }

    fn finish(&mut self) -> Result<()> {
        self.output.end(&self.notifier);
        Ok(())
    }

    fn sleep(streams: &[Self], _: Interest) -> Result<()> {
        if streams.iter().any(|stream| stream.is_ready) {
            return Ok(());
        }
        let each = |stream| PollFd::from_borrowed_fd(Self::notifier(stream), PollFlags::IN);
        // The usual one stream costs no allocation.
        let slept = match streams {
            [stream] => poll(&mut [each(stream)], None),
            _ => poll(&mut streams.iter().map(each).collect::<Vec<_>>(), None),
        };
        match slept {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("poll"),
        }
    }
}

/// Listens on a name that is no file and goes away with the process.
pub(crate) struct RingsDoor {
    listener: OwnedFd,
    name: String,
    sizes: RingSizes,
    sleeps: bool,
}

impl RingsDoor {
    pub(crate) fn open(size: usize, sleeps: bool) -> Result<Self> {
        rstream_ring::prepare();
        let name = format!("rstream-perf-ring-{}", std::process::id());
        let listener = socket()?;
        net::bind(&listener, &address(&name)?).context("listening for rings")?;
        net::listen(&listener, BACKLOG).context("listening for rings")?;
        Ok(Self { listener, name, sizes: RingSizes { output: size, input: size }, sleeps })
    }
}

impl Listener for RingsDoor {
    type Stream = Rings;

    fn target(&self) -> Result<String> {
        Ok(self.name.clone())
    }

    fn accept(&mut self) -> Result<Rings> {
        let socket = net::accept_with(&self.listener, SocketFlags::CLOEXEC).context("accepting")?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        net::recvmsg(&socket, &mut [IoSliceMut::new(&mut [0])], &mut control, flags).context("recvmsg")?;
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let segment = Segment::from_peer(file.context("the other side sent no segment")?, self.sizes)?;
        Rings::new(&segment, socket, self.sleeps)
    }
}

/// The name of such a listener.
pub(crate) struct RingsWay {
    name: String,
    sizes: RingSizes,
    sleeps: bool,
}

impl RingsWay {
    pub(crate) fn new(name: &str, size: usize, sleeps: bool) -> Self {
        rstream_ring::prepare();
        Self { name: name.to_owned(), sizes: RingSizes { output: size, input: size }, sleeps }
    }
}

impl Connector for RingsWay {
    type Stream = Rings;

    fn connect(&mut self) -> Result<Rings> {
        let segment = Segment::create(self.sizes)?;
        let socket = socket()?;
        net::connect(&socket, &address(&self.name)?).context("connecting")?;
        let files = [segment.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        ensure!(control.push(SendAncillaryMessage::ScmRights(&files)), "no space for a descriptor");
        net::sendmsg(&socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL).context("sendmsg")?;
        Rings::new(&segment, socket, self.sleeps)
    }
}

fn socket() -> Result<OwnedFd> {
    net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).context("socket")
}

fn address(name: &str) -> Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_is_woken_by_bytes_and_by_the_end() {
        let mut door = RingsDoor::open(256, true).unwrap();
        let mut near = RingsWay::new(&door.name, 256, true).connect().unwrap();
        let mut far = door.accept().unwrap();
        assert_eq!(far.receive(&mut [0; 8]).unwrap(), None);
        let sending = std::thread::spawn(move || {
            near.send(b"last").unwrap();
            near.finish().unwrap();
        });
        let mut lengths = Vec::new();
        while lengths.last() != Some(&0) {
            match far.receive(&mut [0; 8]).unwrap() {
                Some(length) => lengths.push(length),
                None => Rings::sleep(std::slice::from_ref(&far), Interest::Receive).unwrap(),
            }
        }
        assert_eq!(lengths, [4, 0]);
        sending.join().unwrap();
    }
}
