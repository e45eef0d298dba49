//! Sends, receives, writes and reads of regions.

use std::sync::Arc;

use rdma_verbs::Access;
use rdma_verbs::typed::{self, Lend, Pieces, Remote, Work};

use crate::connection::{Connection, Receiver};
use crate::domain::Domain;
use crate::error::{Error, Result};
use crate::queue::Request;
use crate::region::Region;

/// Bytes of a region, as C names them.
pub(crate) struct Part {
    pub(crate) region: Arc<Region>,
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

/// How a request is posted.
pub(crate) struct Posting {
    /// What its completion brings back.
    pub(crate) context: usize,
    pub(crate) is_signaled: bool,
}

pub(crate) fn send(connection: &Connection, parts: &[Part], posting: &Posting) -> Result<()> {
    post(connection, parts, posting, Work::send, Work::send)
}

pub(crate) fn write(connection: &Connection, parts: &[Part], to: Remote, posting: &Posting) -> Result<()> {
    post(connection, parts, posting, |piece| Work::write(piece, to), |pieces| Work::write(pieces, to))
}

/// Posts a request with these parts as its payload.
fn post(
    connection: &Connection,
    parts: &[Part],
    posting: &Posting,
    of_one: impl FnOnce(typed::Piece) -> Work<typed::Piece>,
    of_many: impl FnOnce(Pieces) -> Work<Pieces>,
) -> Result<()> {
    let current = connection.current()?;
    let mut pieces = parts.iter().map(Part::piece).collect::<Result<Vec<_>>>()?;
    connection.sends.post(posting.context, posting.is_signaled, || match (pieces.pop(), pieces.is_empty()) {
        (Some(one), true) => Ok(operation(current, of_one(one))),
        (last, _) => match Pieces::new(pieces.into_iter().chain(last).collect::<Vec<_>>()) {
            Some(pieces) => Ok(operation(current, of_many(pieces))),
            None => Err(no_parts()),
        },
    })
}

pub(crate) fn read(connection: &Connection, parts: &[Part], from: Remote, posting: &Posting) -> Result<()> {
    let current = connection.current()?;
    match parts {
        [] => Err(no_parts()),
        [part] => {
            let work = Work::read(part.piece()?, from);
            connection.sends.post(posting.context, posting.is_signaled, || Ok(operation(current, work)))
        }
        parts if posting.is_signaled => {
            let scatter = Scatter::new(&connection.domain, parts, connection.domain.read_target)?;
            let work = Work::read(scatter.whole()?, from);
            let reading = operation(current, work);
            connection.sends.post(posting.context, true, || {
                Ok(Box::pin(async move {
                    reading.await?;
                    scatter.fill(usize::MAX)?;
                    Ok(0)
                }))
            })
        }
        _ => Err(Error::new(libc::EINVAL, "a read into several pieces has to be signaled")),
    }
}

pub(crate) fn receive(connection: &Connection, parts: &[Part], context: usize) -> Result<()> {
    let (piece, scatter) = match parts {
        [] => return Err(no_parts()),
        [part] => (part.piece()?, None),
        parts => {
            let scatter = Scatter::new(&connection.domain, parts, Access::LOCAL_WRITE)?;
            (scatter.whole()?, Some(scatter))
        }
    };
    connection.receives.post(context, true, || {
        let landing = connection.post_receive(|receiver| match receiver {
            Receiver::Endpoint(endpoint) => Ok(endpoint.land(piece)?),
            Receiver::Connection(connection) => Ok(connection.land(piece)?),
        })?;
        Ok(Box::pin(async move {
            let landed = landing.await?;
            if let Some(scatter) = scatter {
                scatter.fill(landed.length as usize)?;
            }
            Ok(landed.length)
        }))
    })
}

/// A request that owns its connection.
fn operation<M: Lend + Send + 'static>(connection: Arc<typed::Connection>, work: Work<M>) -> Request {
    Box::pin(async move {
        connection.post(work).await?;
        Ok(0)
    })
}

fn no_parts() -> Error {
    Error::new(libc::EINVAL, "a request needs a piece of a region at least")
}

impl Part {
    fn piece(&self) -> Result<typed::Piece> {
        self.region.piece(self.offset, self.length)
    }
}

/// Number of bytes of all parts.
pub(crate) fn total(parts: &[Part]) -> Result<u32> {
    let total = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.length));
    total
        .and_then(|total| u32::try_from(total).ok())
        .ok_or_else(|| Error::new(libc::EMSGSIZE, "a request has at most 4294967295 bytes"))
}

/// Parts that a device does not fill by itself: what arrives goes to a region of its own, and is copied.
struct Scatter {
    whole: typed::Region,
    /// Each with its offset and length.
    parts: Vec<(typed::Region, usize, usize)>,
}

impl Scatter {
    fn new(domain: &Domain, parts: &[Part], access: Access) -> Result<Self> {
        let whole = domain.shard.region(total(parts)?.max(1) as usize, access)?;
        let parts = parts.iter().map(|&Part { ref region, offset, length }| {
            region.belongs_to(domain)?;
            Ok((region.writable(offset, length)?, offset, length))
        });
        Ok(Self { whole, parts: parts.collect::<Result<_>>()? })
    }

    fn whole(&self) -> Result<typed::Piece> {
        Ok(self.whole.piece(0..self.parts.iter().map(|(_, _, length)| length).sum())?)
    }

    /// Copies the first bytes of what arrived to the parts.
    fn fill(&self, length: usize) -> Result<()> {
        let (mut bytes, mut at) = (Vec::new(), 0);
        for (region, offset, room) in &self.parts {
            bytes.resize(length.saturating_sub(at).min(*room), 0);
            self.whole.read(at, &mut bytes)?;
            region.write(*offset, &bytes)?;
            at += bytes.len();
        }
        Ok(())
    }
}
