//! The second connection: what is measured.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use rdma_testkit::harness::{self, Connection, LIMIT, SEND, remote, segment, step};
use rdma_verbs::{
    Access, CompletionKind, Device, Memory, MemoryRegion, Operation, Payload, QpCapabilities, RemoteAddress,
    Segment,
};

use super::control::{CYCLE, Control};
use super::options::{Options, Role, Test};

/// Receives that perftest posts for `ib_send_bw`, unless there are fewer messages, and requests that a client
/// has outstanding.
const RECEIVES: u32 = 512;
const WINDOW: u32 = 64;

/// A receiver on iWARP, which has no retry for a message without receive, says after so many messages how
/// many it has had: it writes a number of 32 bits into the sender's memory.
const CREDIT_EACH: u32 = RECEIVES / 3;

/// How long a server may take to listen a second time.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Traffic<D: Device> {
    connection: Connection<D>,
    /// What is sent, received, written or read.
    buffer: D::Mr,
    /// Where the receiver's credit arrives.
    credit: D::Mr,
    names_credit: bool,
}

impl<D: Device> Traffic<D> {
    fn new(device: D, options: &Options) -> harness::Result<Self> {
        let depth = RECEIVES + WINDOW;
        let wanted = QpCapabilities {
            send_depth: depth,
            recv_depth: depth,
            inline: 0,
            initiator_depth: 16,
            responder_resources: 16,
        };
        let connection = Connection::new(device, wanted, 0)?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let buffer = connection.region(options.size.max(CYCLE) as usize, rights)?;
        if !receives(options) {
            let bytes: Vec<u8> = (0..options.size).map(|at| at as u8 | 1).collect();
            buffer.memory().write(0, &bytes)?;
        }
        let credit = connection.region(4, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Self { connection, buffer, credit, names_credit: options.test == Test::Send })
    }

    pub(crate) fn listen(device: D, options: &Options) -> harness::Result<Self> {
        let mut traffic = Self::new(device, options)?;
        traffic.connection.listen(options.address)?;
        Ok(traffic)
    }

    pub(crate) fn accept(&mut self) -> harness::Result<()> {
        self.connection.accept()
    }

    /// Connects; the server may not listen yet.
    pub(crate) fn connect(
        device: impl Fn() -> rdma_verbs::Result<D>,
        options: &Options,
    ) -> harness::Result<Self> {
        let patience = Instant::now() + PATIENCE;
        loop {
            let mut traffic = Self::new(device()?, options)?;
            match traffic.connection.connect(options.address) {
                Ok(()) => return Ok(traffic),
                Err(error) if Instant::now() > patience => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn message(&self, options: &Options) -> Segment {
        segment(&self.buffer, 0, options.size as usize)
    }

    /// What the other side writes or reads.
    pub(crate) fn memory(&self) -> RemoteAddress {
        let region = if self.names_credit { &self.credit } else { &self.buffer };
        remote(region, 0)
    }

    pub(crate) fn send(&mut self, options: &Options) -> harness::Result<()> {
        let receives = RECEIVES.min(options.count);
        let mut finished = 0;
        for sent in 0..options.count {
            let credit = self.credit.memory();
            self.connection.end.until("credit", |_| (sent - had(credit) < receives).then_some(()))?;
            if sent - finished == WINDOW {
                self.connection.completed(CompletionKind::Send)?;
                finished += 1;
            }
            self.connection.post(SEND, Payload::Segments(&[self.message(options)]))?;
        }
        (finished..options.count).try_for_each(|_| self.connection.completed(CompletionKind::Send).map(drop))
    }

    pub(crate) fn post_receives(&mut self, options: &Options) -> harness::Result<()> {
        (0..RECEIVES).try_for_each(|_| self.connection.post_receive(self.message(options)))
    }

    pub(crate) fn receive(&mut self, credit: RemoteAddress, options: &Options) -> Result<(), Box<dyn Error>> {
        for received in 1..=options.count {
            let completion = self.connection.completed(CompletionKind::Recv)?;
            if completion.length != options.size {
                return Err(format!("a message of {} bytes", completion.length).into());
            }
            self.connection.post_receive(self.message(options))?;
            if received % CREDIT_EACH == 0 {
                // From a region of this side, which holds nothing else.
                self.credit.memory().write(0, &received.to_ne_bytes())?;
                self.connection.write(segment(&self.credit, 0, 4), credit)?;
            }
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, memory: RemoteAddress, options: &Options) -> harness::Result<()> {
        self.repeat(Operation::Write { remote: memory, immediate: None }, CompletionKind::Write, options)
    }

    pub(crate) fn read(&mut self, memory: RemoteAddress, options: &Options) -> harness::Result<()> {
        self.repeat(Operation::Read { remote: memory }, CompletionKind::Read, options)
    }

    /// Lets the other side write and read until it has something to say: this device is driven by calls.
    pub(crate) fn serve(&mut self, control: &mut Control<D>) -> harness::Result<()> {
        let deadline = Instant::now() + LIMIT;
        let (traffic, control) = (&mut self.connection.end, &mut control.connection.end);
        while control.completions.is_empty() {
            step(&mut [&mut *traffic, &mut *control], deadline, "the end of the test")?;
        }
        Ok(())
    }

    /// The same request again and again, some at a time.
    fn repeat(
        &mut self,
        operation: Operation,
        kind: CompletionKind,
        options: &Options,
    ) -> harness::Result<()> {
        for posted in 0..options.count {
            if posted >= WINDOW {
                self.connection.completed(kind)?;
            }
            self.connection.post(operation, Payload::Segments(&[self.message(options)]))?;
        }
        (0..options.count.min(WINDOW)).try_for_each(|_| self.connection.completed(kind).map(drop))
    }

    /// The end, which the client begins.
    pub(crate) fn finish(&mut self, options: &Options) -> harness::Result<()> {
        match options.role {
            Role::Client => self.connection.disconnect(),
            Role::Server => self.connection.wait_for_end(),
        }
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
