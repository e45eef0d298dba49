//! The side that listens, reads and writes.

use std::error::Error;

use rdma_testkit::harness::segment;
use rdma_verbs::{Access, Device, MemoryRegion, RemoteAddress};

use super::options::Options;
use super::word::{Word, hear, open, say};

/// What the server says: that it is done. rping looks at its length only.
const DONE: Word = Word { memory: RemoteAddress { key: 0, address: 0 }, size: 0 };

pub(crate) fn run<D: Device>(device: D, options: &Options) -> Result<(), Box<dyn Error>> {
    let mut connection = open(device)?;
    // The target of an RDMA read is written by the peer on iWARP.
    let buffer = connection.region(options.size as usize, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    connection.listen(options.address)?;
    connection.accept()?;
    for _ in 0..options.count.unwrap_or(u64::MAX) {
        let mut source = hear(&mut connection)?;
        check_size(source, options.size)?;
        if options.wrong_key {
            source = source.with_wrong_key();
        }
        connection.read(source.memory, segment(&buffer, 0, source.size as usize))?;
        say(&mut connection, DONE)?;
        let mut text = vec![0; source.size as usize];
        buffer.memory().read(0, &mut text)?;
        let text = &text[..text.iter().position(|&byte| byte == 0).unwrap_or(text.len())];
        if options.verbose {
            println!("server ping data: {}", String::from_utf8_lossy(text));
        }
        let sink = hear(&mut connection)?;
        check_size(sink, options.size)?;
        // As much as the text has, and its NUL.
        let length = (sink.size as usize).min(text.len() + 1);
        connection.write(segment(&buffer, 0, length), sink.memory)?;
        say(&mut connection, DONE)?;
    }
    Ok(connection.wait_for_end()?)
}

fn check_size(place: Word, most: u32) -> Result<(), Box<dyn Error>> {
    if place.size > most {
        return Err(format!("the client's {} bytes are more than -S {most}", place.size).into());
    }
    Ok(())
}
