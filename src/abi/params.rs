//! Parameters: environment variables `FI_RSTREAM_<NAME>` that libfabric knows, explains
//! (`fi_info -e`) and reads. See
//! [`fi_provider(3)`](https://ofiwg.github.io/libfabric/main/man/fi_provider.3.html).
//!
//! A parameter is a constant; a provider defines all of its own in [`super::Provider::init`].

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt::Display;
use std::ptr;

use super::{Errno, Result, provider, sys};

/// A parameter of one of the types that libfabric has: `bool`, `i32`, `usize`, `&'static str`.
#[derive(Debug)]
pub struct Param<T> {
    /// Name, in lower case.
    pub name: &'static CStr,
    /// What it does and in which unit; the default is added.
    pub help: &'static str,
    /// Its value unless set, or when what is set cannot be read.
    pub default: T,
}

/// A [`Param`] of any type, to be listed.
pub trait Definition: Sync {
    /// Makes it known to libfabric. Once for each.
    ///
    /// # Errors
    /// `-FI_ENOMEM`.
    fn define(&self) -> Result<()>;
}

/// Makes these known to libfabric, in the order in which `fi_info -e` is to list them.
///
/// # Errors
/// `-FI_ENOMEM`.
pub fn define(table: &[&dyn Definition]) -> Result<()> {
    table.iter().try_for_each(|parameter| parameter.define())
}

impl<T: Value> Definition for Param<T> {
    fn define(&self) -> Result<()> {
        let help = CString::new(format!("{} (default: {})", self.help, self.default));
        let help = help.map_err(|_| Errno::EINVAL)?;
        // SAFETY: the provider's struct is static; all texts are NUL-terminated, and libfabric
        // copies them; `%s` takes the one argument that there is.
        let answer = unsafe {
            sys::fi_param_define(provider::raw(), self.name.as_ptr(), T::KIND, c"%s".as_ptr(), help.as_ptr())
        };
        if answer < 0 { Err(Errno::new(-answer)) } else { Ok(()) }
    }
}

impl<T: Value> Param<T> {
    /// Its value now.
    pub fn get(&self) -> T::Owned {
        let mut raw = T::UNSET;
        // SAFETY: the provider's struct is static, the name NUL-terminated. libfabric writes the
        // type that belongs to the kind which the parameter was defined with; one that was not
        // defined is not written.
        let answer = unsafe { sys::fi_param_get(provider::raw(), self.name.as_ptr(), (&raw mut raw).cast()) };
        let value = if answer < 0 { None } else { T::from_raw(raw) };
        value.unwrap_or_else(|| self.default.into())
    }
}

/// A type that a parameter can have.
pub trait Value: sealed::Raw + Display + Copy + Sync {}

impl<T: sealed::Raw + Display + Copy + Sync> Value for T {}

mod sealed {
    use super::*;

    /// How libfabric gives a value of a type.
    pub trait Raw: Sized {
        /// What libfabric writes.
        type Raw;
        /// What is kept of it.
        type Owned: From<Self>;
        const KIND: sys::fi_param_type;
        const UNSET: Self::Raw;
        fn from_raw(raw: Self::Raw) -> Option<Self::Owned>;
    }

    impl Raw for bool {
        type Raw = c_int;
        type Owned = Self;
        const KIND: sys::fi_param_type = sys::FI_PARAM_BOOL;
        const UNSET: c_int = 0;
        fn from_raw(raw: c_int) -> Option<Self> {
            Some(raw != 0)
        }
    }

    impl Raw for i32 {
        type Raw = c_int;
        type Owned = Self;
        const KIND: sys::fi_param_type = sys::FI_PARAM_INT;
        const UNSET: c_int = 0;
        fn from_raw(raw: c_int) -> Option<Self> {
            Some(raw)
        }
    }

    impl Raw for usize {
        type Raw = Self;
        type Owned = Self;
        const KIND: sys::fi_param_type = sys::FI_PARAM_SIZE_T;
        const UNSET: Self = 0;
        fn from_raw(raw: Self) -> Option<Self> {
            Some(raw)
        }
    }

    impl Raw for &'static str {
        type Raw = *mut c_char;
        type Owned = String;
        const KIND: sys::fi_param_type = sys::FI_PARAM_STRING;
        const UNSET: *mut c_char = ptr::null_mut();
        fn from_raw(raw: *mut c_char) -> Option<String> {
            if raw.is_null() {
                return None;
            }
            // SAFETY: libfabric gives a NUL-terminated text of the environment, which the program
            // may change later: it is copied now.
            let text = unsafe { CStr::from_ptr(raw) };
            Some(text.to_string_lossy().into_owned())
        }
    }
}
