//! Parameters: environment variables `FI_RSTREAM_<NAME>`, which libfabric lists
//! (`fi_info -e`) and reads. See
//! [`fi_provider(3)`](https://ofiwg.github.io/libfabric/main/man/fi_provider.3.html).
//!
//! Each parameter is a constant. A provider defines its parameters in [`super::Provider::init`].

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt::Display;
use std::ptr;

use super::{Errno, Result, provider, sys};

/// A parameter of one of the types that libfabric supports: `bool`, `i32`, `usize`, `&'static str`.
#[derive(Debug)]
pub struct Param<T> {
    /// Name, in lower case.
    pub name: &'static CStr,
    /// Its effect and its unit. The default is appended.
    pub help: &'static str,
    /// Its value if the variable is unset or cannot be parsed.
    pub default: T,
}

/// A [`Param`] of any type.
pub trait Definition: Sync {
    /// Defines the parameter in libfabric. Called once per parameter.
    ///
    /// # Errors
    /// `-FI_ENOMEM`.
    fn define(&self) -> Result<()>;
}

/// Defines the parameters in libfabric. `fi_info -e` lists them in this order.
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
        // copies them; `%s` takes exactly the one argument that follows.
        let answer = unsafe {
            sys::fi_param_define(provider::raw(), self.name.as_ptr(), T::KIND, c"%s".as_ptr(), help.as_ptr())
        };
        if answer < 0 { Err(Errno::new(-answer)) } else { Ok(()) }
    }
}

impl<T: Value> Param<T> {
    /// The current value.
    pub fn get(&self) -> T::Owned {
        let mut raw = T::UNSET;
        // SAFETY: the provider's struct is static, the name NUL-terminated. libfabric writes a value of the
        // type that the parameter was defined with, and nothing for an undefined parameter.
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

    /// The representation of a type in libfabric.
    pub trait Raw: Sized {
        /// The type that libfabric writes.
        type Raw;
        /// The type of the result.
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
            // SAFETY: libfabric returns a NUL-terminated text of the environment. It is copied now, because
            // the program may change it later.
            let text = unsafe { CStr::from_ptr(raw) };
            Some(text.to_string_lossy().into_owned())
        }
    }
}
