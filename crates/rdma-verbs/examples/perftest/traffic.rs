//! The second connection: what is measured.

use std::error::Error;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rdma_verbs::{
    Access, CompletionKind, CompletionQueue, Device, Interest, Memory, MemoryRegion, Operation, Payload,
    RemoteAddress, Token,
};

use super::control::{CYCLE, Control};
use super::end::{End, SEND, Shape, segment};
use super::options::{Options, Role, Test};

/// Receives that perftest posts for `ib_send_bw`, unless there are fewer messages, and requests that a client has
/// outstanding.
const RECEIVES: u32 = 512;
const WINDOW: u32 = 64;

/// A receiver on iWARP, which has no retry for a message without receive, says after so many messages how many it has
/// had: it writes a number of 32 bits into the sender's memory.
const CREDIT_EACH: u32 = RECEIVES / 3;

/// How long a server may take to listen a second time.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Traffic<D: Device> {
    end: End<D>,
    /// What is sent, received, written or read.
    buffer: D::Mr,
    /// Where the receiver's credit arrives.
    credit: D::Mr,
    names_credit: bool,
}

/// One that listens.
pub(crate) struct Waiting<D: Device> {
    traffic: Traffic<D>,
    listener: D::Listener,
}

impl<D: Device> Waiting<D> {
    pub(crate) fn accept(mut self) -> Result<Traffic<D>, Box<dyn Error>> {
        self.traffic.end.accept(self.listener)?;
        Ok(self.traffic)
    }
}

impl<D: Device> Traffic<D> {
    fn new(device: D, options: &Options) -> Result<Self, Box<dyn Error>> {
        let end = End::new(device, Shape { depth: RECEIVES + WINDOW, reads: 16, message: 0 })?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let buffer = end.region(options.size.max(CYCLE), rights)?;
        if !receives(options) {
            let bytes: Vec<u8> = (0..options.size).map(|at| at as u8 | 1).collect();
            buffer.memory().write(0, &bytes)?;
        }
        let credit = end.region(4, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Self { end, buffer, credit, names_credit: options.test == Test::Send })
    }

    pub(crate) fn listen(device: D, options: &Options) -> Result<Waiting<D>, Box<dyn Error>> {
        let traffic = Self::new(device, options)?;
        let listener = traffic.end.listen(options.address)?;
        Ok(Waiting { traffic, listener })
    }

    /// Connects; the server may not listen yet.
    pub(crate) fn connect(
        device: impl Fn() -> rdma_verbs::Result<D>,
        options: &Options,
    ) -> Result<Self, Box<dyn Error>> {
        let patience = Instant::now() + PATIENCE;
        loop {
            let mut traffic = Self::new(device()?, options)?;
            match traffic.end.connect(options.address) {
                Ok(()) => return Ok(traffic),
                Err(error) if Instant::now() > patience => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// What the other side writes or reads.
    pub(crate) fn memory(&self) -> RemoteAddress {
        let region = if self.names_credit { &self.credit } else { &self.buffer };
        RemoteAddress { key: region.remote_key(), address: region.address() }
    }

    pub(crate) fn send(&mut self, options: &Options) -> Result<(), Box<dyn Error>> {
        let receives = RECEIVES.min(options.count);
        let mut finished = 0;
        for sent in 0..options.count {
            let credit = self.credit.memory();
            self.end.until("credit", |_| (sent - had(credit) < receives).then_some(()))?;
            if sent - finished == WINDOW {
                self.end.completed(CompletionKind::Send)?;
                finished += 1;
            }
            self.end.post(SEND, Payload::Segments(&[segment(&self.buffer, options.size)]))?;
        }
        (finished..options.count).try_for_each(|_| self.end.completed(CompletionKind::Send).map(drop))
    }

    pub(crate) fn post_receives(&mut self, options: &Options) -> Result<(), Box<dyn Error>> {
        (0..RECEIVES).try_for_each(|_| self.end.post_receive(segment(&self.buffer, options.size)))
    }

    pub(crate) fn receive(&mut self, credit: RemoteAddress, options: &Options) -> Result<(), Box<dyn Error>> {
        for received in 1..=options.count {
            let completion = self.end.completed(CompletionKind::Recv)?;
            if completion.length != options.size {
                return Err(format!("a message of {} bytes", completion.length).into());
            }
            self.end.post_receive(segment(&self.buffer, options.size))?;
            if received % CREDIT_EACH == 0 {
                // From a region of this side, which holds nothing else.
                self.credit.memory().write(0, &received.to_ne_bytes())?;
                let write = Operation::Write { remote: credit, immediate: None };
                self.end.carry_out(write, segment(&self.credit, 4))?;
            }
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, memory: RemoteAddress, options: &Options) -> Result<(), Box<dyn Error>> {
        self.repeat(Operation::Write { remote: memory, immediate: None }, CompletionKind::Write, options)
    }

    pub(crate) fn read(&mut self, memory: RemoteAddress, options: &Options) -> Result<(), Box<dyn Error>> {
        self.repeat(Operation::Read { remote: memory }, CompletionKind::Read, options)
    }

    /// Lets the other side write and read until it has something to say: this device is driven by calls.
    pub(crate) fn serve(&mut self, control: &mut Control<D>) -> Result<(), Box<dyn Error>> {
        self.end.wait.add(control.wait().as_fd(), Token(2), Interest::Read)?;
        self.end.until("the end of the test", |_| control.has_news())
    }

    /// The same request again and again, some at a time.
    fn repeat(
        &mut self,
        operation: Operation,
        kind: CompletionKind,
        options: &Options,
    ) -> Result<(), Box<dyn Error>> {
        for posted in 0..options.count {
            if posted >= WINDOW {
                self.end.completed(kind)?;
            }
            self.end.post(operation, Payload::Segments(&[segment(&self.buffer, options.size)]))?;
        }
        (0..options.count.min(WINDOW)).try_for_each(|_| self.end.completed(kind).map(drop))
    }

    /// The end, which the client begins.
    pub(crate) fn finish(&mut self, options: &Options) -> Result<(), Box<dyn Error>> {
        if options.role == Role::Client {
            self.end.cq.disconnect(self.end.qp);
        }
        self.end.wait_for_end()
    }

    /// What was sent, written or read is not zero all over; perftest has random bytes.
    pub(crate) fn check(&self, options: &Options) -> Result<(), Box<dyn Error>> {
        let mut bytes = vec![0; options.size as usize];
        self.buffer.memory().read(0, &mut bytes)?;
        if receives(options) && bytes.iter().all(|&byte| byte == 0) {
            return Err("nothing arrived in the buffer".into());
        }
        Ok(())
    }
}

/// How many messages the receiver says it has had.
fn had(credit: &Memory) -> u32 {
    let mut number = [0; 4];
    // Four bytes are there: the region was made for them.
    let _ = credit.read(0, &mut number);
    u32::from_ne_bytes(number)
}

/// Whether bytes arrive on this side.
fn receives(options: &Options) -> bool {
    match options.role {
        Role::Server => options.test != Test::Read,
        Role::Client => options.test == Test::Read,
    }
}
