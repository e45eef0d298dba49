//! Counters.

use super::*;

/// A counter that records its calls, and panics on demand.
#[derive(Default)]
pub(super) struct Counter {
    asked: Mutex<Vec<String>>,
    panics: AtomicBool,
}

impl Counter {
    fn note(&self, what: String) -> Result<()> {
        self.asked.lock().push(what);
        Ok(())
    }
}

impl Fid for Counter {
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl CntrOps for Counter {
    fn read(&self) -> u64 {
        assert!(!self.panics.load(Ordering::Relaxed), "told to");
        u64::MAX - 1
    }

    fn readerr(&self) -> u64 {
        3
    }

    fn add(&self, value: u64) -> Result<()> {
        self.note(format!("add {value}"))
    }

    fn adderr(&self, value: u64) -> Result<()> {
        self.note(format!("adderr {value}"))
    }

    fn set(&self, value: u64) -> Result<()> {
        self.note(format!("set {value}"))
    }

    fn seterr(&self, value: u64) -> Result<()> {
        self.note(format!("seterr {value}"))
    }

    fn wait(&self, threshold: u64, timeout: Option<Duration>) -> Result<()> {
        self.note(format!("wait {threshold} {timeout:?}"))?;
        Err(Errno::ETIMEDOUT)
    }
}

fn open_counter() -> (*mut sys::fid_cntr, Arc<Counter>) {
    let value = Arc::new(Counter::default());
    (New::counter(Arc::clone(&value)).hand_out(context()), value)
}

#[test]
fn calls_reach_the_counter() {
    let (counter, value) = open_counter();
    assert_eq!(slot!(counter.ops.read()), u64::MAX - 1);
    assert_eq!(slot!(counter.ops.readerr()), 3);
    assert_eq!(slot!(counter.ops.add(1)), 0);
    assert_eq!(slot!(counter.ops.adderr(2)), 0);
    assert_eq!(slot!(counter.ops.set(3)), 0);
    assert_eq!(slot!(counter.ops.seterr(u64::MAX)), 0);
    assert_eq!(slot!(counter.ops.wait(5, 1500)), int(Errno::ETIMEDOUT));
    assert_eq!(slot!(counter.ops.wait(6, -1)), int(Errno::ETIMEDOUT));
    let expected =
        ["add 1", "adderr 2", "set 3", "seterr 18446744073709551615", "wait 5 Some(1.5s)", "wait 6 None"];
    assert_eq!(*value.asked.lock(), expected);
    // SAFETY: a live object of this test.
    let (class, given) = unsafe { ((*counter).fid.fclass, (*counter).fid.context) };
    assert_eq!((class, given), (sys::FI_CLASS_CNTR as usize, context()));
    assert_eq!(fid_slot!(counter.close()), 0);
}

#[test]
fn counters_are_opened_as_asked() {
    let (domain, value) = open_domain(0x10011);
    let mut counter = ptr::null_mut();
    let mut asked = sys::fi_cntr_attr {
        events: sys::FI_CNTR_EVENTS_COMP,
        wait_obj: sys::FI_WAIT_FD,
        wait_set: ptr::null_mut(),
        flags: 6,
    };
    let raw = &raw mut asked;
    assert_eq!(slot!(domain.ops.cntr_open(raw, &raw mut counter, context())), 0);
    let expected = CntrAttr { events: 0, wait_obj: sys::FI_WAIT_FD, flags: 6 };
    assert_eq!(value.last(), format!("{expected:?}"));
    assert_eq!(fid_slot!(counter.close()), 0);
    assert_eq!(slot!(domain.ops.cntr_open(ptr::null_mut(), &raw mut counter, context())), 0);
    assert_eq!(value.last(), format!("{:?}", CntrAttr::default()));
    assert_eq!(fid_slot!(counter.close()), 0);
    assert_eq!(slot!(domain.ops.cntr_open(raw, ptr::null_mut(), context())), int(Errno::EINVAL));
    // SAFETY: an object of this test, and no reference to it is in use.
    unsafe { (*raw).wait_obj = sys::FI_WAIT_SET };
    assert_eq!(slot!(domain.ops.cntr_open(raw, &raw mut counter, context())), int(Errno::ENOSYS));
    assert_eq!(fid_slot!(domain.close()), 0);
}

#[test]
fn a_poisoned_counter_reads_0() {
    let (counter, value) = open_counter();
    value.panics.store(true, Ordering::Relaxed);
    assert_eq!(slot!(counter.ops.read()), 0);
    value.panics.store(false, Ordering::Relaxed);
    assert_eq!((slot!(counter.ops.read()), slot!(counter.ops.readerr())), (0, 0));
    assert_eq!(slot!(counter.ops.wait(0, 0)), int(Errno::EIO));
    assert!(value.asked.lock().is_empty());
    assert_eq!(fid_slot!(counter.close()), 0);
}
