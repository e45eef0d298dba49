//! `struct fi_provider`, which `fi_prov_ini` returns to libfabric: the entry point of all other calls. See
//! [`fi_provider(3)`](https://ofiwg.github.io/libfabric/main/man/fi_provider.3.html).
//!
//! The library exports one function, which passes its [`Provider`] to [`entry`]:
//!
//! ```text
//! #[unsafe(no_mangle)]
//! pub extern "C" fn fi_prov_ini() -> *mut rstream_fi::abi::sys::fi_provider {
//!     rstream_fi::abi::entry(&MyProvider)
//! }
//! ```

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use super::buffer::text;
use super::info::{FabricAttr, InfoList, InfoRef};
use super::object::NewFabric;
use super::ops::domain::open;
use super::{Errno, Result, ffi_boundary, fork, log, sys};

/// Name of the provider in hints, parameters and log lines.
pub const NAME: &std::ffi::CStr = c"rstream";

/// Operations of a provider that need no object.
pub trait Provider: Sync {
    /// Called once, when libfabric loads the library. Parameters are defined here.
    fn init(&self) {}

    /// `fi_getinfo`: the infos that match `hints` for an application of API `version`.
    ///
    /// # Errors
    /// `-FI_ENODATA` if nothing matches, `-FI_EINVAL`, `-FI_EBADFLAGS`.
    fn getinfo(
        &self,
        version: u32,
        node: Option<&str>,
        service: Option<&str>,
        flags: u64,
        hints: Option<InfoRef<'_>>,
    ) -> Result<InfoList>;

    /// `fi_fabric`.
    ///
    /// # Errors
    /// `-FI_EINVAL` if the fabric does not exist.
    fn fabric(&self, attributes: FabricAttr<'_>) -> Result<NewFabric>;

    /// Called in the child of each `fork`, before any other code: the existing objects belong to the
    /// parent.
    fn forked(&self) {}

    /// Called once, when libfabric shuts down.
    fn cleanup(&self) {}
}

/// Memory of a `struct fi_provider`. libfabric writes `context` at any time.
struct Memory(UnsafeCell<sys::fi_provider>);

// SAFETY: Rust never holds a reference to it. `entry` writes it before libfabric has the address. After
// that, only C accesses it, and Rust only passes the address on.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new(sys::fi_provider {
    version: 0,
    fi_version: 0,
    context: sys::fi_context { internal: [ptr::null_mut(); 4] },
    name: NAME.as_ptr(),
    getinfo: Some(getinfo),
    fabric: Some(fabric),
    cleanup: Some(cleanup),
}));

static PROVIDER: OnceLock<&'static dyn Provider> = OnceLock::new();

/// The provider's structure, for logging and parameters.
pub(super) fn raw() -> *mut sys::fi_provider {
    MEMORY.0.get()
}

/// Notifies the provider that this process is a new child.
pub(super) fn forked() {
    if let Some(provider) = PROVIDER.get() {
        provider.forked();
    }
}

/// Implements `fi_prov_ini`: starts logging and `provider`. Later calls only return the same pointer.
pub fn entry(provider: &'static dyn Provider) -> *mut sys::fi_provider {
    let outcome: c_int = ffi_boundary::call_free(|| {
        PROVIDER.get_or_init(|| {
            // SAFETY: runs once, before the address is passed to C. `fi_version` has no preconditions.
            unsafe {
                (*raw()).version = version();
                // Every application of this libfabric may use the provider: it depends on no feature
                // of a particular version.
                (*raw()).fi_version = sys::fi_version();
            }
            log::start();
            fork::watch();
            provider.init();
            provider
        });
        Ok(())
    });
    // Null tells libfabric that the provider is unusable.
    if outcome == 0 { raw() } else { ptr::null_mut() }
}

/// The version of this package.
fn version() -> u32 {
    let number = |text: &str| text.parse::<u16>().map_or(0, u32::from);
    sys::version(number(env!("CARGO_PKG_VERSION_MAJOR")), number(env!("CARGO_PKG_VERSION_MINOR")))
}

unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const sys::fi_info,
    out: *mut *mut sys::fi_info,
) -> c_int {
    ffi_boundary::call_free(|| {
        let provider = PROVIDER.get().ok_or(Errno::ENODATA)?;
        if out.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: each is null or valid during the call, by `fi_getinfo(3)`.
        let (node, service, hints) = unsafe { (text(node)?, text(service)?, InfoRef::from_raw(hints)) };
        let infos = provider.getinfo(version, node, service, flags, hints)?;
        if infos.is_empty() {
            return Err(Errno::ENODATA);
        }
        // SAFETY: not null, and writable by `fi_getinfo(3)`.
        unsafe { *out = infos.into_raw() };
        Ok(())
    })
}

unsafe extern "C" fn fabric(
    attributes: *mut sys::fi_fabric_attr,
    out: *mut *mut sys::fid_fabric,
    context: *mut c_void,
) -> c_int {
    ffi_boundary::call_free(|| {
        let provider = PROVIDER.get().ok_or(Errno::ENODATA)?;
        // SAFETY: null, or valid during the call by `fi_fabric(3)`.
        let attributes = unsafe { FabricAttr::of(attributes) }.ok_or(Errno::EINVAL)?;
        // SAFETY: null, or writable by `fi_fabric(3)`.
        unsafe { open(out, context, || provider.fabric(attributes)) }
    })
}

unsafe extern "C" fn cleanup() {
    ffi_boundary::call_free(|| {
        if let Some(provider) = PROVIDER.get() {
            provider.cleanup();
        }
        Ok(())
    })
}
