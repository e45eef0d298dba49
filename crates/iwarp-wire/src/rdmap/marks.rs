//! What queue pairs for messages write in the word of an untagged header that RFC 5040 and RFC 7306 reserve,
//! and that a receiver ignores otherwise (RFC 5040 4.4, RFC 7306 6.3).

/// Of a Send: its payload begins with immediate data, in the form of an Immediate Data message. Every other word of a
/// Send that invalidates no key is the length of its message in bytes, or 0 if it is not told.
pub const WITH_DATA: u32 = 1;
/// Of an Immediate Data message: it came with an RDMA Write, and takes no receive.
pub const OF_WRITE: u32 = 1;
