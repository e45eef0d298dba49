//! Data calls of message endpoints and shared receive contexts.

use libc::iovec;

use super::*;

/// A data call as it reaches the provider.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Call {
    Receive {
        buffers: Vec<Place>,
        flags: Option<u64>,
        context: UserContext,
    },
    Send {
        buffers: Vec<Place>,
        data: Option<u64>,
        flags: Option<u64>,
        context: UserContext,
    },
    Inject(Vec<u8>, Option<u64>),
    Cancel(UserContext),
    Read(Rma),
    Write(Rma),
    InjectWrite(Vec<u8>, RemotePiece, Option<u64>),
    /// A receive for these tags.
    For(Tags, Box<Self>),
    /// A send with this tag.
    With(u64, Box<Self>),
}

/// The content of a [`RmaCall`].
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rma {
    pub(super) local: Vec<Place>,
    pub(super) remote: Vec<RemotePiece>,
    pub(super) data: Option<u64>,
    pub(super) flags: Option<u64>,
    pub(super) context: UserContext,
}

impl From<RmaCall<'_>> for Rma {
    fn from(call: RmaCall<'_>) -> Self {
        let RmaCall { local, remote, data, flags, context } = call;
        Self { local: local.to_vec(), remote: remote.to_vec(), data, flags, context }
    }
}

/// A message endpoint that records its data calls, and panics or fails on demand.
#[derive(Default)]
pub(super) struct Messages {
    calls: Mutex<Vec<Call>>,
    pub(super) full: AtomicBool,
    pub(super) panics: AtomicBool,
}

impl Messages {
    fn take(&self, call: Call) -> Result<()> {
        self.calls.lock().push(call);
        assert!(!self.panics.load(Ordering::Relaxed), "told to");
        if self.full.load(Ordering::Relaxed) { Err(Errno::EAGAIN) } else { Ok(()) }
    }

    /// The only call since the last question.
    pub(super) fn only(&self) -> Call {
        let calls = std::mem::take(&mut *self.calls.lock());
        assert_eq!(calls.len(), 1, "{calls:?}");
        calls[0].clone()
    }

    pub(super) fn reached(&self) -> bool {
        !self.calls.lock().is_empty()
    }
}

impl Fid for Messages {
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl EndpointOps for Messages {
    fn cancel(&self, context: UserContext) -> Result<()> {
        self.take(Call::Cancel(context))
    }

    fn tx_size_left(&self) -> Result<usize> {
        Ok(7)
    }

    fn rx_size_left(&self) -> Result<usize> {
        Err(Errno::EOPBADSTATE)
    }
}

impl CmOps for Messages {}

impl From<MessageReceive<'_>> for Call {
    fn from(receive: MessageReceive<'_>) -> Self {
        let MessageReceive { buffers, flags, context } = receive;
        Self::Receive { buffers: buffers.to_vec(), flags, context }
    }
}

impl From<MessageSend<'_>> for Call {
    fn from(send: MessageSend<'_>) -> Self {
        let MessageSend { buffers, data, flags, context } = send;
        Self::Send { buffers: buffers.to_vec(), data, flags, context }
    }
}

impl MessageOps for Messages {
    fn post_recv(&self, receive: MessageReceive<'_>) -> Result<()> {
        self.take(receive.into())
    }

    fn post_send(&self, send: MessageSend<'_>) -> Result<()> {
        self.take(send.into())
    }

    fn inject(&self, message: &[u8], data: Option<u64>) -> Result<()> {
        self.take(Call::Inject(message.to_vec(), data))
    }
}

impl RmaOps for Messages {
    fn read(&self, call: RmaCall<'_>) -> Result<()> {
        self.take(Call::Read(call.into()))
    }

    fn write(&self, call: RmaCall<'_>) -> Result<()> {
        self.take(Call::Write(call.into()))
    }

    fn inject_write(&self, source: &[u8], target: RemotePiece, data: Option<u64>) -> Result<()> {
        self.take(Call::InjectWrite(source.to_vec(), target, data))
    }
}

impl TaggedOps for Messages {
    fn post_tagged_recv(&self, tags: Tags, receive: MessageReceive<'_>) -> Result<()> {
        self.take(Call::For(tags, Box::new(receive.into())))
    }

    fn post_tagged_send(&self, tag: u64, send: MessageSend<'_>) -> Result<()> {
        self.take(Call::With(tag, Box::new(send.into())))
    }

    fn tagged_inject(&self, tag: u64, message: &[u8], data: Option<u64>) -> Result<()> {
        self.take(Call::With(tag, Box::new(Call::Inject(message.to_vec(), data))))
    }
}

impl StatsOps for Messages {}

/// A shared receive context: receives only.
#[derive(Default)]
pub(super) struct Receiver(Messages);

impl Fid for Receiver {
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl EndpointOps for Receiver {
    fn cancel(&self, context: UserContext) -> Result<()> {
        self.0.cancel(context)
    }
}

impl CmOps for Receiver {}

impl MessageOps for Receiver {
    fn post_recv(&self, receive: MessageReceive<'_>) -> Result<()> {
        self.0.post_recv(receive)
    }
}

/// The fid of a new message endpoint, as an application has it, and its value.
pub(super) fn open_messages() -> (*mut sys::fid_ep, Arc<Messages>) {
    let value = Arc::new(Messages::default());
    (New::message_endpoint(Arc::clone(&value), true).hand_out(context()), value)
}

/// The place of all of `bytes`.
pub(super) fn place(bytes: &mut [u8]) -> Place {
    // SAFETY: no test accesses memory through the place.
    unsafe { Place::new(bytes.as_mut_ptr(), bytes.len() as u32) }.unwrap()
}

/// The vector of all of `bytes`.
pub(super) fn piece(bytes: &mut [u8]) -> iovec {
    iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

/// The context of the operations here.
pub(super) const CONTEXT: *mut c_void = ptr::without_provenance_mut(0xabcd);

fn message(pieces: &[iovec], data: u64) -> sys::fi_msg {
    let (msg_iov, iov_count) = (pieces.as_ptr(), pieces.len());
    sys::fi_msg { msg_iov, desc: ptr::null_mut(), iov_count, addr: 0, context: CONTEXT, data }
}

pub(super) fn received(buffers: &[Place], flags: Option<u64>) -> Call {
    Call::Receive { buffers: buffers.to_vec(), flags, context: UserContext(CONTEXT) }
}

pub(super) fn sent(buffers: &[Place], data: Option<u64>, flags: Option<u64>) -> Call {
    Call::Send { buffers: buffers.to_vec(), data, flags, context: UserContext(CONTEXT) }
}

#[test]
fn receives_arrive_with_places_flags_and_context() {
    let (endpoint, value) = open_messages();
    let (mut first, mut second) = ([0; 3], [0; 5]);
    let places = [place(&mut first), place(&mut second)];
    let pieces = [piece(&mut first), piece(&mut second)];
    let null = ptr::null_mut();
    assert_eq!(slot!(endpoint.msg.recv(first.as_mut_ptr().cast(), 3, null, 0, CONTEXT)), 0);
    assert_eq!(value.only(), received(&places[..1], None));
    assert_eq!(slot!(endpoint.msg.recvv(pieces.as_ptr(), ptr::null_mut(), 2, 0, CONTEXT)), 0);
    assert_eq!(value.only(), received(&places, None));
    let message = message(&pieces, 9);
    assert_eq!(slot!(endpoint.msg.recvmsg(&raw const message, sys::FI_COMPLETION)), 0);
    assert_eq!(value.only(), received(&places, Some(sys::FI_COMPLETION)));
    assert_eq!(slot!(endpoint.msg.recvmsg(&raw const message, 0)), 0);
    assert_eq!(value.only(), received(&places, Some(0)), "no flags are not the default flags");
    assert_eq!(slot!(endpoint.msg.recvmsg(ptr::null(), 0)), size(Errno::EINVAL));
    assert!(!value.reached());
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

#[test]
fn sends_arrive_with_places_data_flags_and_context() {
    let (endpoint, value) = open_messages();
    let (mut first, mut second) = (*b"abc", *b"defgh");
    let places = [place(&mut first), place(&mut second)];
    let pieces = [piece(&mut first), piece(&mut second)];
    let (data, null) = (first.as_ptr().cast(), ptr::null_mut());
    assert_eq!(slot!(endpoint.msg.send(data, 3, null, 0, CONTEXT)), 0);
    assert_eq!(value.only(), sent(&places[..1], None, None));
    assert_eq!(slot!(endpoint.msg.sendv(pieces.as_ptr(), ptr::null_mut(), 2, 0, CONTEXT)), 0);
    assert_eq!(value.only(), sent(&places, None, None));
    assert_eq!(slot!(endpoint.msg.senddata(data, 3, null, 9, 0, CONTEXT)), 0);
    assert_eq!(value.only(), sent(&places[..1], Some(9), None));
    let message = message(&pieces, 9);
    for (flags, data) in [(0, None), (sys::FI_INJECT, None), (sys::FI_REMOTE_CQ_DATA | sys::FI_MORE, Some(9))]
    {
        assert_eq!(slot!(endpoint.msg.sendmsg(&raw const message, flags)), 0);
        assert_eq!(value.only(), sent(&places, data, Some(flags)));
    }
    assert_eq!(slot!(endpoint.msg.sendmsg(ptr::null(), 0)), size(Errno::EINVAL));
    assert_eq!(slot!(endpoint.msg.inject(data, 3, 0)), 0);
    assert_eq!(value.only(), Call::Inject(b"abc".to_vec(), None));
    assert_eq!(slot!(endpoint.msg.injectdata(data, 3, 9, 0)), 0);
    assert_eq!(value.only(), Call::Inject(b"abc".to_vec(), Some(9)));
    value.full.store(true, Ordering::Relaxed);
    assert_eq!(slot!(endpoint.msg.send(data, 3, null, 0, CONTEXT)), size(Errno::EAGAIN));
    assert_eq!(slot!(endpoint.msg.inject(data, 3, 0)), size(Errno::EAGAIN));
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

/// Makes each call with one buffer of `length` bytes at `base`, and expects these results.
fn each_single(base: *mut c_void, length: usize, receive: isize, send: isize) {
    let (endpoint, value) = open_messages();
    let null = ptr::null_mut();
    assert_eq!(slot!(endpoint.msg.recv(base, length, null, 0, CONTEXT)), receive);
    assert_eq!(value.reached(), receive == 0, "what is refused does not reach it");
    value.calls.lock().clear();
    assert_eq!(slot!(endpoint.msg.send(base, length, null, 0, CONTEXT)), send);
    assert_eq!(slot!(endpoint.msg.senddata(base, length, null, 9, 0, CONTEXT)), send);
    assert_eq!(value.reached(), send == 0, "what is refused does not reach it");
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

#[test]
fn buffers_of_nonsense() {
    let mut byte = 0_u8;
    let base = (&raw mut byte).cast();
    each_single(ptr::null_mut(), 0, 0, 0);
    each_single(ptr::null_mut(), 1, 0, size(Errno::EINVAL));
    each_single(base, 1 << 32, size(Errno::EMSGSIZE), size(Errno::EMSGSIZE));
    each_single(base, usize::MAX, size(Errno::EMSGSIZE), size(Errno::EMSGSIZE));
    let (endpoint, value) = open_messages();
    for (base, length) in [(ptr::null_mut(), 1), (base, usize::MAX)] {
        assert_eq!(slot!(endpoint.msg.inject(base, length, 0)), size(Errno::EINVAL));
        assert_eq!(slot!(endpoint.msg.injectdata(base, length, 9, 0)), size(Errno::EINVAL));
    }
    assert!(!value.reached());
    assert_eq!(slot!(endpoint.msg.inject(ptr::null(), 0, 0)), 0);
    assert_eq!(value.only(), Call::Inject(vec![], None));
    // The longest place. Nobody accesses it.
    assert_eq!(slot!(endpoint.msg.send(base, u32::MAX as usize, ptr::null_mut(), 0, CONTEXT)), 0);
    let Call::Send { buffers, .. } = value.only() else { panic!("a send") };
    assert_eq!(buffers[0].len(), u32::MAX as usize);
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

/// The result of a vectored call, and the places that reached the provider.
type Outcome = (isize, Vec<Place>);

/// Makes each vectored call, and returns the outcomes of the receives and of the sends.
fn each_vector(pieces: *const iovec, count: usize) -> [Outcome; 2] {
    let (endpoint, value) = open_messages();
    let descriptors = ptr::null_mut();
    let message = sys::fi_msg { msg_iov: pieces, iov_count: count, ..message(&[], 0) };
    let mut outcomes = Vec::new();
    let mut push = |answer| {
        let places = match value.reached().then(|| value.only()) {
            Some(Call::Receive { buffers, .. } | Call::Send { buffers, .. }) => buffers,
            other => {
                assert!(other.is_none());
                Vec::new()
            }
        };
        outcomes.push((answer, places));
    };
    push(slot!(endpoint.msg.recvv(pieces, descriptors, count, 0, CONTEXT)));
    push(slot!(endpoint.msg.recvmsg(&raw const message, 0)));
    push(slot!(endpoint.msg.sendv(pieces, descriptors, count, 0, CONTEXT)));
    push(slot!(endpoint.msg.sendmsg(&raw const message, 0)));
    assert_eq!(fid_slot!(endpoint.close()), 0);
    assert_eq!((&outcomes[0], &outcomes[2]), (&outcomes[1], &outcomes[3]));
    [outcomes.swap_remove(0), outcomes.pop().unwrap()]
}

/// Makes each vectored call, and returns their outcome, which is the same.
fn every_vector(pieces: *const iovec, count: usize) -> Outcome {
    let [receive, send] = each_vector(pieces, count);
    assert_eq!(receive, send);
    send
}

#[test]
fn vectors_up_to_the_limit() {
    let mut bytes = [0; 8];
    let pieces = [piece(&mut bytes); MESSAGE_IOV_LIMIT + 1];
    for count in 0..=MESSAGE_IOV_LIMIT {
        assert_eq!(every_vector(pieces.as_ptr(), count), (0, vec![place(&mut bytes); count]));
    }
    for count in [MESSAGE_IOV_LIMIT + 1, usize::MAX] {
        assert_eq!(every_vector(pieces.as_ptr(), count), (size(Errno::EINVAL), vec![]));
    }
    assert_eq!(every_vector(ptr::null(), 0), (0, vec![]));
    assert_eq!(every_vector(ptr::null(), 1), (size(Errno::EINVAL), vec![]));
    let askew = pieces.as_ptr().wrapping_byte_add(1);
    assert_eq!(every_vector(askew, 1), (size(Errno::EINVAL), vec![]), "misaligned");
}

#[test]
fn vectors_of_nonsense() {
    let mut bytes = [0; 8];
    let good = piece(&mut bytes);
    let empty = iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    let null = iovec { iov_len: 1, ..empty };
    let huge = iovec { iov_len: 1 << 32, ..good };
    let outcome = |pieces: &[iovec]| every_vector(pieces.as_ptr(), pieces.len());
    let [receive, send] = each_vector([good, null].as_ptr(), 2);
    assert_eq!(receive, (0, vec![place(&mut bytes)]), "a null receive is empty");
    assert_eq!(send, (size(Errno::EINVAL), vec![]));
    assert_eq!(outcome(&[empty, good, empty, good]), (0, vec![place(&mut bytes); 2]), "without empty ones");
    assert_eq!(outcome(&[good, huge]), (size(Errno::EMSGSIZE), vec![]));
    assert_eq!(outcome(&[huge, null]), (size(Errno::EMSGSIZE), vec![]));
}

#[test]
fn operations_are_cancelled_by_context_and_counted() {
    let (endpoint, value) = open_messages();
    let fid = endpoint.cast::<sys::fid>();
    // SAFETY: a live endpoint of this test.
    let cancel = unsafe { (*(*endpoint).ops).cancel.unwrap() };
    // SAFETY: as above.
    assert_eq!(unsafe { cancel(fid, CONTEXT) }, 0);
    assert_eq!(value.only(), Call::Cancel(UserContext(CONTEXT)));
    value.full.store(true, Ordering::Relaxed);
    // SAFETY: as above.
    assert_eq!(unsafe { cancel(fid, ptr::null_mut()) }, size(Errno::EAGAIN));
    assert_eq!(value.only(), Call::Cancel(UserContext::NONE));
    assert_eq!(slot!(endpoint.ops.tx_size_left()), 7);
    assert_eq!(slot!(endpoint.ops.rx_size_left()), size(Errno::EOPBADSTATE));
    assert_eq!(fid_slot!(endpoint.close()), 0);

    let (stream, _) = open_endpoint();
    let null = ptr::null_mut();
    assert_eq!(slot!(stream.ops.tx_size_left()), size(Errno::ENOSYS));
    assert_eq!(slot!(stream.ops.rx_size_left()), size(Errno::ENOSYS));
    assert_eq!(slot!(stream.msg.senddata(null, 0, null, 0, 0, null)), size(Errno::ENOSYS));
    assert_eq!(fid_slot!(stream.close()), 0);
}

#[test]
fn a_shared_receive_context_only_receives() {
    let (domain, value) = open_domain(0x10011);
    let mut shared = ptr::null_mut();
    let open = |attributes, out| slot!(domain.ops.srx_ctx(attributes, out, context()));
    assert_eq!(open(ptr::null_mut(), ptr::null_mut()), int(Errno::EINVAL));
    assert_eq!(open(ptr::null_mut(), &raw mut shared), 0);
    assert_eq!(value.last(), "srx_context None");
    assert_eq!(fid_slot!(shared.close()), 0);
    let mut info = Info::new().unwrap();
    info.rx_attr().set_size(12);
    // SAFETY: an owned info with all parts.
    assert_eq!(open(unsafe { (*info.as_ptr()).rx_attr }, &raw mut shared), 0);
    assert_eq!(value.last(), "srx_context Some(12)");
    // SAFETY: a live object of this test.
    let (class, given) = unsafe { ((*shared).fid.fclass, (*shared).fid.context) };
    assert_eq!((class, given), (sys::FI_CLASS_SRX_CTX as usize, context()));

    let receiver: Arc<Receiver> = AnyFid(shared.cast()).downcast().unwrap();
    let (mut bytes, null) = ([0; 3], ptr::null_mut());
    let buffer = bytes.as_mut_ptr().cast::<c_void>();
    assert_eq!(slot!(shared.msg.recv(buffer, 3, null, 0, CONTEXT)), 0);
    assert_eq!(receiver.0.only(), received(&[place(&mut bytes)], None));
    let unsupported = size(Errno::ENOSYS);
    assert_eq!(slot!(shared.msg.send(buffer, 3, null, 0, CONTEXT)), unsupported);
    assert_eq!(slot!(shared.msg.sendmsg(&message(&[], 0), 0)), unsupported);
    assert_eq!(slot!(shared.msg.injectdata(buffer, 3, 9, 0)), unsupported);
    assert_eq!(slot!(shared.rma.read(buffer, 3, null, 0, 0, 0, CONTEXT)), unsupported);
    assert_eq!(slot!(shared.cm.accept(ptr::null(), 0)), int(Errno::ENOSYS));
    assert_eq!(fid_slot!(shared.close()), 0);
    assert_eq!(fid_slot!(domain.close()), 0);
}

#[test]
fn a_panic_in_a_message_call_poisons_the_endpoint() {
    let (endpoint, value) = open_messages();
    let (mut bytes, null) = ([0; 3], ptr::null_mut());
    let buffer = bytes.as_mut_ptr().cast::<c_void>();
    value.panics.store(true, Ordering::Relaxed);
    assert_eq!(slot!(endpoint.msg.recv(buffer, 3, null, 0, CONTEXT)), size(Errno::EIO));
    value.panics.store(false, Ordering::Relaxed);
    value.only();
    assert_eq!(slot!(endpoint.msg.send(buffer, 3, null, 0, CONTEXT)), size(Errno::EIO));
    assert_eq!(slot!(endpoint.rma.read(buffer, 3, null, 0, 0, 0, CONTEXT)), size(Errno::EIO));
    assert!(!value.reached());
    assert_eq!(fid_slot!(endpoint.close()), 0);
}

/// A receiver that finds out whether its thread can be cancelled.
#[derive(Default)]
struct Cancellable<const POINTS: bool>(AtomicBool);

impl<const POINTS: bool> Fid for Cancellable<POINTS> {
    const CANCELLATION_POINTS: bool = POINTS;

    fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl<const POINTS: bool> EndpointOps for Cancellable<POINTS> {}
impl<const POINTS: bool> CmOps for Cancellable<POINTS> {}

impl<const POINTS: bool> MessageOps for Cancellable<POINTS> {
    fn inject(&self, _: &[u8], _: Option<u64>) -> Result<()> {
        self.0.store(cancel::is_deferred(), Ordering::Relaxed);
        Ok(())
    }
}

fn is_deferred_with<const POINTS: bool>() -> bool {
    let value = Arc::new(Cancellable::<POINTS>::default());
    let shared = New::shared_receive(Arc::clone(&value)).hand_out(ptr::null_mut());
    assert_eq!(slot!(shared.msg.inject(ptr::null(), 0, 0)), 0);
    assert_eq!(fid_slot!(shared.close()), 0);
    value.0.load(Ordering::Relaxed)
}

#[test]
fn data_calls_defer_cancellation_if_they_reach_a_cancellation_point() {
    assert!(is_deferred_with::<true>());
    assert!(!is_deferred_with::<false>());
    assert!(!cancel::is_deferred(), "after the call, it is as before");
}
