//! Posting requests, and waiting for what becomes of them.

use std::ffi::{c_int, c_void};
use std::ptr;

use rdma_verbs::typed::Remote;

use super::arguments::{Out, Places, list, value};
use super::connection::rdma_easy_connection;
use super::region::{rdma_easy_region, rdma_easy_remote};
use crate::connection::{Connection, count};
use crate::domain::Timeout;
use crate::error::{Error, Result, call};
use crate::handle;
use crate::queue::Done;
use crate::region::Region;
use crate::transfer::{self, Part, Posting};

/// Bytes of a region.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_easy_piece {
    /// The region.
    pub region: *mut rdma_easy_region,
    /// Of the first byte.
    pub offset: usize,
    /// In bytes.
    pub length: usize,
}

/// Flag: the completion of the request is reported by rdma_easy_await. Without it, only a failure shows, as
/// the end of the connection.
pub const RDMA_EASY_SIGNALED: u32 = 1;

/// Queue: sends, writes and reads.
pub const RDMA_EASY_SENDS: c_int = 0;
/// Queue: receives.
pub const RDMA_EASY_RECEIVES: c_int = 1;

/// What became of a request.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_easy_completion {
    /// What the request was posted with.
    pub context: *mut c_void,
    /// 0, or a negative errno: -ECANCELED if the connection ended before; -EMSGSIZE if the message was longer
    /// than its receive; -EACCES if the peer's memory could not be accessed.
    pub error: c_int,
    /// Of a receive: the length of the message in bytes.
    pub length: u32,
}

/// The pieces of a request.
///
/// # Safety
/// The promise of `arguments`.
unsafe fn parts(pieces: *const rdma_easy_piece, count: usize) -> Result<Vec<Part>> {
    // SAFETY: the requirement of this function. The fields have no invalid values.
    let pieces = unsafe { list(pieces, count) }?;
    let part = |&rdma_easy_piece { region, offset, length }| {
        Ok(Part { region: handle::find::<Region>(region)?, offset, length })
    };
    pieces.iter().map(part).collect()
}

fn posting(context: *mut c_void, flags: u32) -> Result<Posting> {
    if flags & !RDMA_EASY_SIGNALED != 0 {
        return Err(Error::new(libc::EINVAL, format!("{flags:#x} has unknown flags")));
    }
    Ok(Posting { context: context.expose_provenance(), is_signaled: flags & RDMA_EASY_SIGNALED != 0 })
}

/// The peer's bytes from `offset` on, as many as the parts have.
fn target(remote: rdma_easy_remote, offset: u32, parts: &[Part]) -> Result<Remote> {
    Ok(Remote::from(remote).piece(offset, transfer::total(parts)?)?)
}

/// Posts a receive: one message of the peer goes to these pieces. Messages fill receives in the order of
/// posting. It does not block.
///
/// `pieces`: `count` pieces of regions with RDMA_EASY_LOCAL_WRITE, which are filled one after the other. The
/// device fills one piece by itself; for several, the message is copied when its completion is taken. A
/// message that is longer breaks the connection.
/// `context`: comes back in the completion.
/// Returns 0; -EAGAIN if as many are posted as the queue has room for; -ERANGE if a piece is not within its
/// region; -EXDEV if a region is of another domain; -EACCES if one lacks the right; -EINVAL for no piece;
/// -EBADF if something is no region or no connection; the reason if the connection has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_post_receive(
    connection: *mut rdma_easy_connection,
    pieces: *const rdma_easy_piece,
    count: usize,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let parts = unsafe { parts(pieces, count) }?;
        let connection = handle::find::<Connection>(connection)?;
        transfer::receive(&connection, &parts, context.expose_provenance())?;
        Ok(0)
    })
}

/// Posts a message: these pieces, one after the other, go to the peer's oldest receive. It does not block. A
/// request that fails while it is posted returns its error, and has no completion.
///
/// `pieces`: `count` pieces of regions; every device takes 3, and the device iwarp any number.
/// `flags`: RDMA_EASY_SIGNALED or 0.
/// `context`: comes back in the completion, if it is signaled.
/// Returns 0; -EAGAIN if as many are posted as the queue has room for; -ENOTCONN if there is no connection
/// yet or no more, or its end has begun; -ERANGE, -EXDEV, -EINVAL, -EBADF as rdma_easy_post_receive; the
/// reason if the connection broke.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_post_send(
    connection: *mut rdma_easy_connection,
    pieces: *const rdma_easy_piece,
    count: usize,
    flags: u32,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let parts = unsafe { parts(pieces, count) }?;
        let connection = handle::find::<Connection>(connection)?;
        transfer::send(&connection, &parts, &posting(context, flags)?)?;
        Ok(0)
    })
}

/// Posts a write: these pieces, one after the other, go to the peer's memory. The peer is not told: a message
/// that is posted afterwards tells it. It does not block.
///
/// `remote`: the peer's memory. `offset`: in bytes, from its beginning.
/// The rest is as for rdma_easy_post_send; -ERANGE also if the bytes are not within the peer's memory. If the
/// peer's memory has no such right, or is freed, the connection breaks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_post_write(
    connection: *mut rdma_easy_connection,
    pieces: *const rdma_easy_piece,
    count: usize,
    remote: *const rdma_easy_remote,
    offset: u32,
    flags: u32,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let (parts, remote) = unsafe { (parts(pieces, count)?, value(remote)?) };
        let connection = handle::find::<Connection>(connection)?;
        let target = target(remote, offset, &parts)?;
        transfer::write(&connection, &parts, target, &posting(context, flags)?)?;
        Ok(0)
    })
}

/// Posts a read: bytes of the peer's memory go to these pieces, one after the other. The peer is not told. It
/// does not block.
///
/// `pieces`: `count` pieces of regions with RDMA_EASY_READ_TARGET. The device fills one piece by itself; a
/// read into several has to be signaled, and is copied when its completion is taken.
/// The rest is as for rdma_easy_post_write; -EACCES if a region lacks the right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_post_read(
    connection: *mut rdma_easy_connection,
    pieces: *const rdma_easy_piece,
    count: usize,
    remote: *const rdma_easy_remote,
    offset: u32,
    flags: u32,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let (parts, remote) = unsafe { (parts(pieces, count)?, value(remote)?) };
        let connection = handle::find::<Connection>(connection)?;
        let source = target(remote, offset, &parts)?;
        transfer::read(&connection, &parts, source, &posting(context, flags)?)?;
        Ok(0)
    })
}

/// Takes the completions of the oldest requests of a queue, in the order of posting. It blocks until `count`
/// of them are done, `timeout_ms` milliseconds at most; without end if that is below 0. If fewer requests
/// are left whose completions can be taken, it waits for those only.
///
/// `queue`: RDMA_EASY_SENDS or RDMA_EASY_RECEIVES.
/// `completions`: room for `count`.
/// Returns how many were taken, at least 1; -ETIMEDOUT if none is done when the time is over; -ENODATA if no
/// request is left; -EINVAL for a wrong queue, or a count of 0; -EBADF if it is no connection. A request that
/// failed is a completion with its error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_await(
    connection: *mut rdma_easy_connection,
    queue: c_int,
    completions: *mut rdma_easy_completion,
    count: usize,
    timeout_ms: c_int,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let places = unsafe { Places::new(completions, count) }?;
        if count == 0 {
            return Err(Error::new(libc::EINVAL, "no completion is asked for"));
        }
        let connection = handle::find::<Connection>(connection)?;
        let requests = match queue {
            RDMA_EASY_SENDS => &connection.sends,
            RDMA_EASY_RECEIVES => &connection.receives,
            other => return Err(Error::new(libc::EINVAL, format!("there is no queue {other}"))),
        };
        let timeout = Timeout::from_ms(timeout_ms);
        let mut taken = 0;
        while taken < count
            && let Some(done) = requests.next(&connection.domain, timeout)
        {
            places.set(taken, completion(done));
            taken += 1;
        }
        match taken {
            0 if requests.len() == 0 => Err(Error::new(libc::ENODATA, "no request is left to be awaited")),
            0 => Err(Timeout::error("completion")),
            taken => Ok(self::count(taken)),
        }
    })
}

fn completion(Done { context, outcome }: Done) -> rdma_easy_completion {
    let (error, length) = match outcome {
        Ok(length) => (0, length),
        Err(error) => (error.keep(), 0),
    };
    rdma_easy_completion { context: ptr::with_exposed_provenance_mut(context), error, length }
}

/// Tells the peer of memory of this side, by a message of 16 bytes: address (8), key (4) and length (4), each
/// big-endian, as rdma-core's `rping` does. The peer needs a receive for it. It does not block.
///
/// `region`: with RDMA_EASY_REMOTE_WRITE or RDMA_EASY_REMOTE_READ. `offset`, `length`: in bytes.
/// Returns 0; -ERANGE if the bytes are not within the region; -EAGAIN if too much is posted; -ENOTCONN if
/// there is no connection; -EXDEV if the region is of another domain; -EBADF if either is none.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_advertise(
    connection: *mut rdma_easy_connection,
    region: *mut rdma_easy_region,
    offset: usize,
    length: usize,
) -> c_int {
    call(|| {
        let connection = handle::find::<Connection>(connection)?;
        let region = handle::find::<Region>(region)?;
        connection.advertise(&region, offset, length)?;
        Ok(0)
    })
}

/// Posts a receive for an advertisement of the peer, as rdma_easy_post_receive posts one for a message: in
/// this order the peer has to send. It does not block.
///
/// Returns 0; -EAGAIN if too much is posted; -EBADF if it is no connection; the reason if the connection has
/// ended.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_expect_advert(connection: *mut rdma_easy_connection) -> c_int {
    call(|| {
        handle::find::<Connection>(connection)?.expect_advert()?;
        Ok(0)
    })
}

/// Waits for the peer's next advertisement: `timeout_ms` milliseconds at most; without end if that is below
/// 0.
///
/// `remote`: gets the peer's memory.
/// Returns 0; -ETIMEDOUT; -ENODATA if rdma_easy_expect_advert has posted no receive; -EBADMSG if the message
/// is no advertisement; -ENOTCONN if there is no connection yet or no more; -EBADF if it is none; the reason
/// if the connection broke.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_await_advert(
    connection: *mut rdma_easy_connection,
    timeout_ms: c_int,
    remote: *mut rdma_easy_remote,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let out = unsafe { Out::new(remote) }?;
        let connection = handle::find::<Connection>(connection)?;
        out.set(connection.await_advert(Timeout::from_ms(timeout_ms))?.into());
        Ok(0)
    })
}
