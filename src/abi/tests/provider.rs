//! The entry point, logging and parameters. They are process-wide, so each test runs in a process of its own.

use std::env;
use std::ffi::{CString, c_char, c_int};
use std::process::{Command, Output};

use super::*;
use crate::abi::params::{self, Param};

/// Set in the process in which a test runs itself.
const INSIDE: &str = "RSTREAM_TEST_INSIDE";

/// Runs the test named `name` in a process of its own with these variables; `None` in that process.
fn outside(name: &str, variables: &[(&str, &str)]) -> Option<Output> {
    if env::var_os(INSIDE).is_some() {
        return None;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").envs(variables.iter().copied());
    // libfabric's own providers are not needed.
    command.env("FI_PROVIDER", "rstream").env_remove("FI_LOG_PROV").env_remove("FI_LOG_SUBSYS");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "no test is named {name}");
    Some(output)
}

struct Fake;

static WORD: Param<&'static str> = Param { name: c"word", help: "A word", default: "none" };
static NUMBER: Param<i32> = Param { name: c"number", help: "A number", default: -3 };
static SIZE: Param<usize> = Param { name: c"size", help: "A size, in bytes", default: 384 };
static SWITCH: Param<bool> = Param { name: c"switch", help: "A switch", default: true };
static DULL: Param<bool> = Param { name: c"dull", help: "100 % of a switch", default: true };

impl Provider for Fake {
    fn init(&self) {
        params::define(&[&WORD, &NUMBER, &SIZE, &SWITCH, &DULL]).unwrap();
    }

    fn getinfo(
        &self,
        version: u32,
        node: Option<&str>,
        service: Option<&str>,
        flags: u64,
        hints: Option<InfoRef<'_>>,
    ) -> Result<InfoList> {
        ::log::info!(target: "fabric", "asked for {node:?} {service:?}");
        ::log::debug!(target: "ep_data", "unread");
        let mut list = InfoList::new();
        if let Some(hints) = hints {
            let mut info = Info::new()?;
            info.set_caps(hints.caps() | flags | u64::from(version));
            list.push(info);
        }
        Ok(list)
    }

    fn fabric(&self, attributes: FabricAttr<'_>) -> Result<NewFabric> {
        match attributes.name()? {
            Some("good") => Ok(New::fabric(Arc::new(Fabric))),
            Some("panic") => panic!("told to"),
            _ => Err(Errno::EINVAL),
        }
    }
}

unsafe extern "C" {
    fn fi_getparams(params: *mut *mut Parameter, count: *mut c_int) -> c_int;
    fn fi_freeparams(params: *mut Parameter);
}

/// `struct fi_param`.
#[repr(C)]
struct Parameter {
    name: *const c_char,
    kind: sys::fi_param_type,
    help: *const c_char,
    value: *const c_char,
}

/// Name and help of every parameter that libfabric knows.
fn parameters() -> Vec<(CString, CString)> {
    let (mut params, mut count) = (ptr::null_mut(), 0);
    // SAFETY: `fi_getparams` returns an array of `count` parameters with NUL-terminated texts, and
    // `fi_freeparams` frees it.
    unsafe {
        assert_eq!(fi_getparams(&raw mut params, &raw mut count), 0);
        let listed = std::slice::from_raw_parts(params, count as usize);
        let texts =
            |param: &Parameter| (CStr::from_ptr(param.name).into(), CStr::from_ptr(param.help).into());
        let listed = listed.iter().map(texts).collect();
        fi_freeparams(params);
        listed
    }
}

/// The provider, in a libfabric that has started, as any use makes it.
fn enter() -> *mut sys::fi_provider {
    parameters();
    entry(&Fake)
}

#[test]
fn the_entry_answers_a_provider() {
    if outside("abi::tests::provider::the_entry_answers_a_provider", &[]).is_some() {
        return;
    }
    let provider = enter();
    assert_eq!(entry(&Fake), provider, "a second time too");
    // SAFETY: the provider of this test, called as libfabric calls it.
    let fabric = unsafe {
        assert_eq!(CStr::from_ptr((*provider).name), c"rstream");
        assert_eq!((*provider).fi_version, sys::fi_version());
        let expected = format!("{}.{}", (*provider).version >> 16, (*provider).version & 0xffff);
        assert!(env!("CARGO_PKG_VERSION").starts_with(&expected));

        let getinfo = (*provider).getinfo.unwrap();
        let (mut info, hints) = (ptr::null_mut(), Info::new().unwrap());
        let (null, out) = (ptr::null(), &raw mut info);
        assert_eq!(getinfo(1, null, null, 2, null.cast(), out), int(Errno::ENODATA), "an empty list");
        assert_eq!(getinfo(1, null, null, 2, hints.as_ptr(), ptr::null_mut()), int(Errno::EINVAL));
        assert_eq!(getinfo(1, c"\xff".as_ptr(), null, 2, hints.as_ptr(), out), int(Errno::EINVAL));
        assert!(info.is_null());
        assert_eq!(getinfo(1, c"node".as_ptr(), null, 2, hints.as_ptr(), out), 0);
        assert_eq!((*info).caps, 3);
        sys::fi_freeinfo(info);

        let open = (*provider).fabric.unwrap();
        let mut fabric = ptr::null_mut();
        let mut attributes: sys::fi_fabric_attr = std::mem::zeroed();
        let asked = &raw mut attributes;
        assert_eq!(open(asked, &raw mut fabric, context()), int(Errno::EINVAL), "no name");
        assert_eq!(open(ptr::null_mut(), &raw mut fabric, context()), int(Errno::EINVAL));
        (*asked).name = c"panic".as_ptr().cast_mut();
        assert_eq!(open(asked, &raw mut fabric, context()), int(Errno::EIO));
        (*asked).name = c"good".as_ptr().cast_mut();
        assert_eq!(open(asked, ptr::null_mut(), context()), int(Errno::EINVAL));
        assert_eq!(open(asked, &raw mut fabric, context()), 0);
        assert_eq!((*fabric).fid.context, context());
        (*provider).cleanup.unwrap()();
        fabric
    };
    assert_eq!(fid_slot!(fabric.close()), 0);
}

#[test]
fn parameters_are_read_from_the_environment() {
    let variables = [
        ("FI_RSTREAM_WORD", "verbum"),
        ("FI_RSTREAM_NUMBER", "-12"),
        ("FI_RSTREAM_SIZE", "0x1000"),
        ("FI_RSTREAM_SWITCH", "no"),
        ("FI_RSTREAM_DULL", "perhaps"),
    ];
    if outside("abi::tests::provider::parameters_are_read_from_the_environment", &variables).is_some() {
        return;
    }
    enter();
    assert_eq!((WORD.get().as_str(), NUMBER.get(), SIZE.get()), ("verbum", -12, 0x1000));
    assert!(!SWITCH.get());
    assert!(DULL.get(), "what cannot be read is the default");
}

#[test]
fn parameters_have_defaults_and_help() {
    if outside("abi::tests::provider::parameters_have_defaults_and_help", &[]).is_some() {
        return;
    }
    enter();
    assert_eq!((WORD.get().as_str(), NUMBER.get(), SIZE.get(), SWITCH.get()), ("none", -3, 384, true));
    let listed = parameters();
    let help = |name: &CStr| listed.iter().find(|param| *param.0 == *name).unwrap().1.to_str().unwrap();
    assert_eq!(help(c"FI_RSTREAM_SIZE"), "rstream: A size, in bytes (default: 384)");
    assert_eq!(help(c"FI_RSTREAM_DULL"), "rstream: 100 % of a switch (default: true)");
}

#[test]
fn log_lines_go_to_libfabric() {
    let variables = [("FI_LOG_LEVEL", "info"), ("FI_LOG_PROV", "rstream")];
    let Some(output) = outside("abi::tests::provider::log_lines_go_to_libfabric", &variables) else {
        let provider = enter();
        let (mut info, node) = (ptr::null_mut(), c"a %s \u{7f}".as_ptr());
        // SAFETY: the provider of this test, called as libfabric calls it.
        unsafe { (*provider).getinfo.unwrap()(1, node, ptr::null(), 0, ptr::null(), &raw mut info) };
        return;
    };
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.contains("asked for")).unwrap();
    assert!(line.contains("rstream:fabric:") && line.contains("Some(\"a %s \\u{7f}\") None"), "{line}");
    assert!(!text.contains("unread"), "{text}");
}
