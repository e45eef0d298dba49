//! The side that listens, reads and writes.

use std::error::Error;

use rdma_verbs::{Access, Device, MemoryRegion, Operation, RemoteAddress};

use super::end::{End, segment};
use super::options::Options;
use super::word::{SHAPE, Word, hear, say};

/// What the server says: that it is done. rping looks at its length only.
const DONE: Word = Word { memory: RemoteAddress { key: 0, address: 0 }, size: 0 };

pub(crate) fn run<D: Device>(device: D, options: &Options) -> Result<(), Box<dyn Error>> {
    let mut end = End::new(device, SHAPE)?;
    // The target of an RDMA read is written by the peer on iWARP.
    let buffer = end.region(options.size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let listener = end.listen(options.address)?;
    end.accept(listener)?;
    for _ in 0..options.count.unwrap_or(u64::MAX) {
        let mut source = hear(&mut end)?;
        check_size(source, options.size)?;
        if options.wrong_key {
            source = source.with_wrong_key();
        }
        end.carry_out(Operation::Read { remote: source.memory }, segment(&buffer, source.size))?;
        say(&mut end, DONE)?;
        let mut text = vec![0; source.size as usize];
        buffer.memory().read(0, &mut text)?;
        let text = &text[..text.iter().position(|&byte| byte == 0).unwrap_or(text.len())];
        if options.verbose {
            println!("server ping data: {}", String::from_utf8_lossy(text));
        }
        let sink = hear(&mut end)?;
        check_size(sink, options.size)?;
        // As much as the text has, and its NUL.
        let length = sink.size.min(text.len() as u32 + 1);
        let write = Operation::Write { remote: sink.memory, immediate: None };
        end.carry_out(write, segment(&buffer, length))?;
        say(&mut end, DONE)?;
    }
    end.wait_for_end()
}

fn check_size(place: Word, most: u32) -> Result<(), Box<dyn Error>> {
    if place.size > most {
        return Err(format!("the client's {} bytes are more than -S {most}", place.size).into());
    }
    Ok(())
}
