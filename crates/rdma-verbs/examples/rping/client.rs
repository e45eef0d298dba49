//! The side that connects, and whose memory is read and written.

use std::error::Error;

use rdma_testkit::harness::{Connection, remote};
use rdma_verbs::{Access, Device, MemoryRegion};

use super::options::Options;
use super::word::{Word, hear, open, say};

pub(crate) fn run<D: Device>(device: D, options: &Options) -> Result<(), Box<dyn Error>> {
    let mut connection = open(device)?;
    let source = connection.region(options.size as usize, Access::REMOTE_READ)?;
    let sink = connection.region(options.size as usize, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    connection.connect(options.address)?;
    if options.greet {
        say(&mut connection, place(&source, options.size))?;
        hear(&mut connection)?;
    } else {
        ping(&mut connection, &source, &sink, options)?;
    }
    Ok(connection.disconnect()?)
}

/// Pings, one after the other.
fn ping<D: Device>(
    connection: &mut Connection<D>,
    source: &D::Mr,
    sink: &D::Mr,
    options: &Options,
) -> Result<(), Box<dyn Error>> {
    for number in 0..options.count.unwrap_or(u64::MAX) {
        let sent = text(number, options.size);
        source.memory().write(0, &sent)?;
        let place_of_text = place(source, options.size);
        say(connection, if options.wrong_key { place_of_text.with_wrong_key() } else { place_of_text })?;
        hear(connection)?;
        say(connection, place(sink, options.size))?;
        hear(connection)?;
        let mut came = vec![0; sent.len()];
        sink.memory().read(0, &mut came)?;
        if options.validate && came != sent {
            return Err(format!("ping {number} came back changed").into());
        }
        if options.verbose {
            println!("ping data: {}", String::from_utf8_lossy(came.strip_suffix(b"\0").unwrap_or(&came)));
        }
    }
    Ok(())
}

/// A region as the peer has to name it.
fn place(region: &impl MemoryRegion, size: u32) -> Word {
    Word { memory: remote(region, 0), size }
}

/// The text of a ping: its number, then characters from "A" to "z" that start one further each time, and a
/// NUL.
fn text(number: u64, size: u32) -> Vec<u8> {
    let mut text = format!("rdma-ping-{number}: ").into_bytes();
    let letters = (b'A'..=b'z').cycle().skip((number % 58) as usize);
    text.extend(letters.take((size as usize).saturating_sub(text.len() + 1)));
    text.push(0);
    text
}
