//! The first connection: what the sides tell each other, by sends in turns. The client always begins.

use std::error::Error;

use rdma_testkit::harness::{CAPABILITIES, Connection};
use rdma_verbs::{Device, QpCapabilities, RemoteAddress};

use super::options::{Options, Role};

/// Length of perftest's description of a queue pair (`struct pingpong_dest`), the longest that is said, and
/// where the key and the address of its memory are.
const DESCRIPTION: usize = 56;
const KEY: usize = 16;
const ADDRESS: usize = 24;

/// The version of perftest whose exchange this is: 5.70 and later are alike. Sent with NULs behind it.
const VERSION: [u8; 16] = *b"6.00\0\0\0\0\0\0\0\0\0\0\0\0";

/// Bytes of memory in which a client goes round with small messages, unless the message is longer. The larger
/// of what both sides say counts.
pub(crate) const CYCLE: u32 = 4096;
const CACHE_LINE: u32 = 64;

/// The number that verbs have for an MTU of 4096, as text: iWARP has no use for it.
const MTU: [u8; 2] = *b"5\0";

pub(crate) struct Control<D: Device> {
    pub(crate) connection: Connection<D>,
    begins: bool,
    memory: RemoteAddress,
}

impl<D: Device> Control<D> {
    pub(crate) fn open(device: D, options: &Options) -> Result<Self, Box<dyn Error>> {
        let wanted = QpCapabilities { initiator_depth: 1, responder_resources: 1, ..CAPABILITIES };
        let mut connection = Connection::new(device, wanted, DESCRIPTION)?;
        match options.role {
            Role::Server => {
                connection.listen(options.address)?;
                connection.accept()?;
            }
            Role::Client => connection.connect(options.address)?,
        }
        let memory = RemoteAddress { key: 0, address: 0 };
        Ok(Self { connection, begins: options.role == Role::Client, memory })
    }

    /// Says something and hears the same thing of the other side.
    fn exchange(&mut self, own: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
        let theirs = if self.begins {
            self.connection.send(own)?;
            self.connection.receive()?
        } else {
            let theirs = self.connection.receive()?;
            self.connection.send(own)?;
            theirs
        };
        if theirs.len() != own.len() {
            return Err(format!("{} bytes where there should be {}", theirs.len(), own.len()).into());
        }
        Ok(theirs)
    }

    /// Versions and sizes.
    pub(crate) fn introduce(&mut self) -> Result<(), Box<dyn Error>> {
        let version = self.exchange(&VERSION)?;
        println!("the other side has version {}", String::from_utf8_lossy(&version).trim_end_matches('\0'));
        let cycle = self.exchange(&CYCLE.to_be_bytes())?;
        if cycle != CYCLE.to_be_bytes() {
            return Err("the other side has pages of another size".into());
        }
        self.exchange(&CACHE_LINE.to_be_bytes())?;
        self.exchange(&MTU)?;
        Ok(())
    }

    /// What every description says from now on.
    pub(crate) fn offer(&mut self, memory: RemoteAddress) {
        self.memory = memory;
    }

    /// Waits until both sides are here. They describe themselves to each other each time: where the other's
    /// memory is.
    pub(crate) fn sync(&mut self) -> Result<RemoteAddress, Box<dyn Error>> {
        let mut own = [0; DESCRIPTION];
        own[KEY..KEY + 4].copy_from_slice(&self.memory.key.to_be_bytes());
        own[ADDRESS..ADDRESS + 8].copy_from_slice(&self.memory.address.to_be_bytes());
        let theirs = self.exchange(&own)?;
        let key = theirs[KEY..KEY + 4].try_into().map(u32::from_be_bytes)?;
        let address = theirs[ADDRESS..ADDRESS + 8].try_into().map(u64::from_be_bytes)?;
        Ok(RemoteAddress { key, address })
    }

    /// What came out: size, count, most and average MiB/s, average of messages/s in millions.
    pub(crate) fn exchange_reports(&mut self, options: &Options, seconds: f64) -> Result<(), Box<dyn Error>> {
        let messages = f64::from(options.count) / seconds;
        let rate = messages * f64::from(options.size) / f64::from(1 << 20);
        self.exchange(&u64::from(options.size).to_be_bytes())?;
        let count = self.exchange(&u64::from(options.count).to_be_bytes())?;
        for figure in [rate, rate, messages / 1e6] {
            self.exchange(&figure.to_be_bytes())?;
        }
        if !self.begins && count != u64::from(options.count).to_be_bytes() {
            return Err(format!("the client counts otherwise: {count:?}").into());
        }
        Ok(())
    }
}
